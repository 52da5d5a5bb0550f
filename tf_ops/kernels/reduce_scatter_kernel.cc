#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/gpu_kernels.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/reduction.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class ReduceScatterKernel : public AsyncOpKernel {
 public:
  explicit ReduceScatterKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction),
        attributes_(construction),
        reduction_(construction, 1) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kReduceScatter);
    request.dtype = ToDataType(context->input_dtype(0));
    // The peers wait for this rank: what fails is told to them.
    request.able = FromTensorFlow(reduction_.ApplyTo(&request, context));

    auto pending = Pending::Create(1);
    request.inputs.push_back(pending->AddInput(context->input(0)));
    request.allocate_output = pending->LateOutput(context);

    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
  const Reduction reduction_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasReduceScatter").Device(tensorflow::DEVICE_CPU),
    ReduceScatterKernel);
RING_KERAS_REGISTER_GPU_REDUCTION(
    "RingKerasReduceScatter", ReduceScatterKernel,
    .HostMemory("prescale").HostMemory("postscale"),
    .HostMemory("tensor").HostMemory("part"))

}  // namespace
}  // namespace ring_keras
