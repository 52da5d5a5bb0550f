#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/gpu_kernels.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/pending_handle.h"
#include "tf_ops/kernels/reduction.h"
#include "tf_ops/kernels/shared_cpu_device.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class AllreduceStartKernel : public OpKernel {
 public:
  explicit AllreduceStartKernel(OpKernelConstruction* construction)
      : OpKernel(construction),
        attributes_(construction),
        tensor_count_(CountOf(construction, "N")),
        is_weighted_(CountOf(construction, "W") > 0),
        reduction_(construction, tensor_count_),
        wire_dtype_(WireDtypeOf(construction)) {
    OP_REQUIRES(construction,
                !is_weighted_ || reduction_.op() == ReduceOp::kAverage,
                absl::InvalidArgumentError(
                    "RingKerasAllreduceStart: only an average has weights"));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("wait_follows", &wait_follows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("splits", &splits_));
    SayIfTensorsArePrivate(*construction);
  }

  void Compute(OpKernelContext* context) override {
    const bool scatters = !splits_.empty();
    Request request = attributes_.NewRequest(
        scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllreduce);
    request.splits = splits_;
    request.dtype = ToDataType(context->input_dtype(0));
    request.wire_dtype = wire_dtype_;
    // The peers wait for this rank: what fails is told to them.
    absl::Status able = reduction_.ApplyTo(&request, context);
    if (able.ok() && is_weighted_) {
      able = Reduction::ReadScalar(context, tensor_count_ + 2, "weight",
                                   &request.weight);
    }

    auto pending = Pending::Create(tensor_count_);
    request.inputs.reserve(tensor_count_);
    request.outputs.reserve(tensor_count_);
    for (int i = 0; i < tensor_count_; ++i) {
      if (able.ok() && !scatters) {
        able = pending->AddOutput(context, i, Pending::kNoOutput,
                                  &request.outputs);
      }
      request.inputs.push_back(pending->AddInput(context->input(i)));
    }
    if (scatters) request.allocate_output = pending->LateOutput(context);
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    handle->scalar<tensorflow::Variant>()() = PendingHandle{pending};

    request.able = FromTensorFlow(able);
    pending->Submit(std::move(request), context,
                    wait_follows_ ? kDriveForS : 0);
  }

 private:
  // How many inputs a list has.
  static int CountOf(OpKernelConstruction* construction,
                     const char* attribute) {
    int count = 0;
    // The op's definition has it.
    TF_CHECK_OK(construction->GetAttr(attribute, &count));
    return count;
  }

  const Attributes attributes_;
  const int tensor_count_;
  const bool is_weighted_;
  const Reduction reduction_;
  const std::optional<DataType> wire_dtype_;
  bool wait_follows_ = false;
  std::vector<int64_t> splits_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllreduceStart").Device(tensorflow::DEVICE_CPU),
    AllreduceStartKernel);
RING_KERAS_REGISTER_GPU_REDUCTION("RingKerasAllreduceStart",
                                  AllreduceStartKernel,
                                  .HostMemory("prescale")
                                      .HostMemory("postscale")
                                      .HostMemory("weight")
                                      .HostMemory("handle"),
                                  .HostMemory("tensors"))

// A handle is in host memory always. But eagerly each op is a function of its
// own, whose results TensorFlow takes to the op's device and back.
absl::Status Hand(
    const PendingHandle& from, PendingHandle* to,
    const tensorflow::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn&) {
  *to = from;
  return absl::OkStatus();
}

using Handing = tensorflow::variant_op_registry_fn_registration::
    UnaryVariantDeviceCopyRegistration<PendingHandle>;
using Direction = tensorflow::VariantDeviceCopyDirection;

const Handing handing[] = {
    {Direction::HOST_TO_DEVICE, tensorflow::TypeIndex::Make<PendingHandle>(),
     Hand},
    {Direction::DEVICE_TO_HOST, tensorflow::TypeIndex::Make<PendingHandle>(),
     Hand},
    {Direction::DEVICE_TO_DEVICE, tensorflow::TypeIndex::Make<PendingHandle>(),
     Hand},
};

}  // namespace
}  // namespace ring_keras
