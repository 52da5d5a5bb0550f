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

class AlltoallKernel : public AsyncOpKernel {
 public:
  explicit AlltoallKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), attributes_(construction) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kAlltoall);
    request.dtype = ToDataType(context->input_dtype(0));
    const auto splits = context->input(1).flat<int64_t>();
    request.splits.assign(splits.data(), splits.data() + splits.size());

    auto pending = Pending::Create(1);
    request.inputs.push_back(pending->AddInput(context->input(0)));
    request.allocate_output = pending->LateOutput(context);
    request.received_splits = pending->ReceivedSplits();

    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasAlltoall").Device(tensorflow::DEVICE_CPU), AlltoallKernel);
REGISTER_KERNEL_BUILDER(Name("RingKerasAlltoall")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("splits")
                            .HostMemory("received_splits"),
                        AlltoallKernel);

}  // namespace
}  // namespace ring_keras
