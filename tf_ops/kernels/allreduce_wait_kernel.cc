#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf_ops/kernels/gpu_kernels.h"
#include "tf_ops/kernels/pending_handle.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Variant;

class AllreduceWaitKernel : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& input = context->input(0);
    const PendingHandle* handle =
        input.NumElements() == 1 ? input.flat<Variant>()(0).get<PendingHandle>()
                                 : nullptr;
    OP_REQUIRES_ASYNC(context, handle != nullptr && handle->pending != nullptr,
                      absl::InvalidArgumentError(
                          "RingKerasAllreduceWait: the handle must come from "
                          "RingKerasAllreduceStart. Received: " +
                          input.DebugString()),
                      done);
    handle->pending->Await(context, std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllreduceWait").Device(tensorflow::DEVICE_CPU),
    AllreduceWaitKernel);
RING_KERAS_REGISTER_GPU_REDUCTION("RingKerasAllreduceWait", AllreduceWaitKernel,
                                  .HostMemory("handle"), .HostMemory("reduced"))

}  // namespace
}  // namespace ring_keras
