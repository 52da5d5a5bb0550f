#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tf_ops/kernels/gpu_kernels.h"
#include "tf_ops/kernels/pending_handle.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Variant;

// Of an op that is asynchronous, TensorFlow hands each op that follows to its
// pool of threads by itself. Those that this wakes look for work for a while
// before they sleep, on cores that others need: with 98 small tensors, on two
// cores, that was a third of a step's time. So here the thread waits instead,
// where there are others.
//
// Only where stateful ops have an order (a tf.function): all starts of a step
// come before its waits, which come one after the other. So a run holds one
// thread, and only for collectives that this rank has begun; nobody waits for
// ever as long as fewer functions run at once than there are threads. What is
// ready besides goes to other threads as long as the op is seldom done at once:
// it counts as expensive by the time that it takes.
class AllreduceWaitKernel : public AsyncOpKernel {
 public:
  explicit AllreduceWaitKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("blocks", &blocks_));
    blocks_ &= construction->device_type() == tensorflow::DEVICE_CPU;
  }

  // How TensorFlow asks which of the two below to call.
  AsyncOpKernel* AsAsync() override { return blocks_ ? nullptr : this; }

  void Compute(OpKernelContext* context) override {
    if (Pending* pending = PendingOf(context)) pending->Wait(context);
  }
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Pending* pending = PendingOf(context);
    if (pending == nullptr) return done();
    pending->Await(context, std::move(done));
  }

 private:
  // Null, and an error of the kernel, if the handle is none.
  static Pending* PendingOf(OpKernelContext* context) {
    const Tensor& input = context->input(0);
    const PendingHandle* handle =
        input.NumElements() == 1 ? input.flat<Variant>()(0).get<PendingHandle>()
                                 : nullptr;
    if (handle != nullptr && handle->pending != nullptr) {
      return handle->pending.get();
    }
    context->SetStatus(absl::InvalidArgumentError(
        "RingKerasAllreduceWait: the handle must come from "
        "RingKerasAllreduceStart. Received: " +
        input.DebugString()));
    return nullptr;
  }

  bool blocks_ = false;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllreduceWait").Device(tensorflow::DEVICE_CPU),
    AllreduceWaitKernel);
RING_KERAS_REGISTER_GPU_REDUCTION("RingKerasAllreduceWait", AllreduceWaitKernel,
                                  .HostMemory("handle"), .HostMemory("reduced"))

}  // namespace
}  // namespace ring_keras
