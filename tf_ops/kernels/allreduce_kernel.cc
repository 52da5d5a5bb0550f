#include <optional>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/gpu_kernels.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/reduction.h"
#include "tf_ops/kernels/shared_cpu_device.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class AllreduceKernel : public AsyncOpKernel {
 public:
  explicit AllreduceKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction),
        attributes_(construction),
        reduction_(construction, 1),
        wire_dtype_(WireDtypeOf(construction)) {
    SayIfTensorsArePrivate(*construction);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kAllreduce);
    request.dtype = ToDataType(context->input_dtype(0));
    request.wire_dtype = wire_dtype_;
    // The peers wait for this rank: what fails is told to them.
    absl::Status able = reduction_.ApplyTo(&request, context);

    auto pending = Pending::Create(1);
    if (able.ok()) {
      able = pending->AddOutput(context, 0, 0, &request.outputs);
    }
    request.able = FromTensorFlow(able);
    request.inputs.push_back(pending->AddInput(context->input(0)));

    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
  const Reduction reduction_;
  const std::optional<DataType> wire_dtype_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllreduce").Device(tensorflow::DEVICE_CPU), AllreduceKernel);
RING_KERAS_REGISTER_GPU_REDUCTION(
    "RingKerasAllreduce", AllreduceKernel,
    .HostMemory("prescale").HostMemory("postscale"),
    .HostMemory("tensor").HostMemory("reduced"))

}  // namespace
}  // namespace ring_keras
