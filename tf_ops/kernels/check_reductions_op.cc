#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ShapesOfTensors(InferenceContext* context) {
  ShapeHandle matrix;
  for (const int index : {0, 1}) {
    const absl::Status status =
        context->WithRank(context->input(index), 2, &matrix);
    if (!status.ok()) return status;
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(2 + i));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasCheckReductions")
    .Input("bits: double")
    .Input("sums: double")
    .Input("tensors: T")
    .Output("checked: T")
    .Attr("T: list(" RING_KERAS_DTYPES ") >= 1")
    .Attr("names: string")
    .SetIsStateful()  // Never prune: it is there for its error.
    .SetShapeFn(ShapesOfTensors)
    .Doc(R"doc(
Hands on tensors that have been reduced, if their checksums are right.

bits: Row per rank: its number plus 1, or 0 if it took no part; then a checksum
  of the bits of each tensor, which must be the same in all rows.
sums: Column per block of elements: the number of its tensor, the sum that it
  must have, that it has, and by how much it may be off.
tensors: What has been reduced.
checked: The same.
names: Of the tensors, for the error; a line each.
)doc");

}  // namespace ring_keras
