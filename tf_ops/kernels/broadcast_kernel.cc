#include <cstdint>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/pending.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class BroadcastKernel : public AsyncOpKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction), attributes_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("roots", &roots_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kBroadcast);
    request.dtype = ToDataType(context->input_dtype(0));
    SetRoots(roots_, &request);

    auto pending = Pending::Create(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      // The peers wait for this rank: what fails is told to them.
      const absl::Status able =
          pending->AddOutput(context, i, i, &request.outputs);
      if (request.able.ok()) request.able = FromTensorFlow(able);
      request.inputs.push_back(pending->AddInput(context->input(i)));
    }

    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
  std::vector<int64_t> roots_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasBroadcast").Device(tensorflow::DEVICE_GPU), BroadcastKernel);

}  // namespace
}  // namespace ring_keras
