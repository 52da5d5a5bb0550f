#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ShapesFromAttribute(InferenceContext* context) {
  std::vector<PartialTensorShape> shapes;
  absl::Status status = context->GetAttr("shapes", &shapes);
  if (!status.ok()) return status;
  if (static_cast<int>(shapes.size()) != context->num_outputs()) {
    return absl::InvalidArgumentError(
        StrCat("RingKerasAllreduceWait: expected one shape per output, ",
               context->num_outputs(), ". Received: ", shapes.size()));
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    ShapeHandle shape;
    status = context->MakeShapeFromPartialTensorShape(shapes[i], &shape);
    if (!status.ok()) return status;
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasAllreduceWait")
    .Input("handle: variant")
    .Output("reduced: N * T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product'}")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("blocks: bool = false")
    .SetIsStateful()  // A twin must not be merged: its outputs are written to.
    .SetShapeFn(ShapesFromAttribute)
    .Doc(R"doc(
Waits for the collective that RingKerasAllreduceStart began.

handle: From the start op.
reduced: The reduced tensors, bitwise equal on every rank.
shapes: Of the started tensors, as far as known when the graph is built.
reduce_op: As given to the start op, and so are the other two; for the
  gradient, which sees this op alone.
request_name: As given to the start op.
communicator_id: As given to the start op.
blocks: Whether the thread that runs the op waits, on a CPU, where TensorFlow
  has others. Else, what follows is handed to the pool of threads when the
  collective has ended, which wakes some of them.
)doc");

}  // namespace ring_keras
