#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/known_shapes.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/piece_attributes.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class BroadcastPiecesKernel : public AsyncOpKernel {
 public:
  explicit BroadcastPiecesKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction),
        attributes_(construction),
        list_(construction) {
    OP_REQUIRES_OK(
        construction,
        ReadKnownShapes(construction, "RingKerasBroadcastPieces", &shapes_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kBroadcast);
    request.dtype = ToDataType(context->input_dtype(0));
    SetRoots(list_.roots, &request);
    auto pending = Pending::Create(context->num_inputs());
    // The peers wait for this rank: what fails is told to them.
    std::vector<Elements> wholes;
    absl::Status able;
    for (size_t i = 0; able.ok() && i < shapes_.size(); ++i) {
      std::vector<void*> data;
      able = pending->NewOutput(context, static_cast<int>(i),
                                context->input_dtype(0), shapes_[i], &data);
      if (able.ok()) wholes.push_back({data[0], shapes_[i].num_elements()});
    }
    std::vector<Elements> own;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& tensor = context->input(i);
      own.push_back({const_cast<void*>(pending->AddInput(tensor).data),
                     tensor.NumElements()});
    }
    request.able = able.ok() ? AddPieces(list_.pieces, own, wholes, &request)
                             : FromTensorFlow(able);
    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  const Attributes attributes_;
  const PieceAttributes list_;
  std::vector<tensorflow::TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasBroadcastPieces").Device(tensorflow::DEVICE_CPU),
    BroadcastPiecesKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasBroadcastPieces").Device(tensorflow::DEVICE_GPU),
    BroadcastPiecesKernel);

}  // namespace
}  // namespace ring_keras
