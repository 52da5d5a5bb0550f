#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/runtime/observation.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class TicksKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* now = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &now));
    now->scalar<int64_t>()() = static_cast<int64_t>(Now());
  }
};

class NoteInputKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto since =
        static_cast<Ticks>(context->input(0).scalar<int64_t>()());
    AddInput(since, Now());
  }
};

REGISTER_KERNEL_BUILDER(Name("RingKerasTicks").Device(tensorflow::DEVICE_CPU),
                        TicksKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasNoteInput").Device(tensorflow::DEVICE_CPU), NoteInputKernel);

}  // namespace
}  // namespace ring_keras
