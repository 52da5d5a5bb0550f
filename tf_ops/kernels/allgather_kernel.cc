#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/pending.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class AllgatherKernel : public AsyncOpKernel {
 public:
  explicit AllgatherKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), attributes_(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kAllgather);
    request.dtype = ToDataType(context->input_dtype(0));

    auto pending = Pending::Create(1);
    request.inputs.push_back(pending->AddInput(context->input(0)));
    request.allocate_output = pending->LateOutput(context);

    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllgather").Device(tensorflow::DEVICE_CPU), AllgatherKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasAllgather").Device(tensorflow::DEVICE_GPU), AllgatherKernel);

}  // namespace
}  // namespace ring_keras
