#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/pending_handle.h"
#include "tf_ops/kernels/reduction.h"

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
        reduction_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &tensor_count_));
  }

  void Compute(OpKernelContext* context) override {
    Request request = attributes_.NewRequest(CollectiveKind::kAllreduce);
    request.dtype = ToDataType(context->input_dtype(0));
    OP_REQUIRES_OK(context, reduction_.ApplyTo(&request, context));

    auto pending = Pending::Create();
    for (int i = 0; i < tensor_count_; ++i) {
      OP_REQUIRES_OK(context, pending->AddOutput(context, i, Pending::kNoOutput,
                                                 &request.outputs));
      request.inputs.push_back(pending->AddInput(context->input(i)));
    }
    Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    handle->scalar<tensorflow::Variant>()() = PendingHandle{pending};

    pending->Submit(std::move(request));
  }

 private:
  const Attributes attributes_;
  const Reduction reduction_;
  int tensor_count_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllreduceStart").Device(tensorflow::DEVICE_CPU),
    AllreduceStartKernel);

}  // namespace
}  // namespace ring_keras
