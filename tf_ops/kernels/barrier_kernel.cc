#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/pending.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class BarrierKernel : public AsyncOpKernel {
 public:
  explicit BarrierKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), attributes_(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto pending = Pending::Create(0);
    pending->Complete(attributes_.NewRequest(CollectiveKind::kBarrier), context,
                      std::move(done));
  }

 private:
  const Attributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("RingKerasBarrier").Device(tensorflow::DEVICE_CPU),
                        BarrierKernel);
// It waits for the ranks' hosts.
REGISTER_KERNEL_BUILDER(Name("RingKerasBarrier").Device(tensorflow::DEVICE_GPU),
                        BarrierKernel);

}  // namespace
}  // namespace ring_keras
