#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/shapes.h"
#include "tf_ops/reduce/int8_blocks.h"

namespace ring_keras {
namespace {

using tensorflow::shape_inference::InferenceContext;

// A message, then what is like the inputs from number `kFirst` on.
template <int kFirst>
absl::Status MessageAndLeft(InferenceContext* context) {
  int64_t rows = 0;
  const absl::Status status = context->GetAttr("rows", &rows);
  if (!status.ok()) return status;
  context->set_output(0, context->Matrix(rows, kInt8RowBytes));
  for (int i = 1; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(kFirst + i - 1));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasQuantize")
    .Input("values: N * float")
    .Input("residuals: N * float")
    .Input("share: float")
    .Output("message: int8")
    .Output("left: N * float")
    .Attr("N: int >= 0")
    .Attr("rows: int >= 0")
    .SetShapeFn(MessageAndLeft<0>)
    .Doc(R"doc(
Says share * values + residuals in int8, as one vector in blocks of 256.

residuals: Like `values`.
share: Scalar.
message: Row per block: its levels, and the 4 bytes of the float that one level
  is. Blocks beyond the last value are zeros.
left: What that does not say.
rows: Of the message.
)doc");

REGISTER_OP("RingKerasSumQuantized")
    .Input("messages: int8")
    .Input("left: N * float")
    .Output("message: int8")
    .Output("left_now: N * float")
    .Attr("N: int >= 0")
    .Attr("rows: int >= 0")
    .Attr("rank: int >= 0")
    .SetShapeFn(MessageAndLeft<1>)
    .Doc(R"doc(
Adds up what ranks have said of this rank's blocks, and says it in int8.

messages: `rows` rows of each rank.
left: What this rank has not said so far, of all values.
message: The sum of each row of all ranks, from the first rank to the last.
left_now: With what that does not say, of this rank's values.
rows: Of a rank. The first rank's values are in the first rows, and so on.
rank: This one.
)doc");

REGISTER_OP("RingKerasDequantize")
    .Input("message: int8")
    .Output("values: N * float")
    .Attr("N: int >= 0")
    .Attr("shapes: list(shape)")
    .SetShapeFn(ShapesFromAttribute)
    .Doc(R"doc(
What a message of RingKerasQuantize says.

message: At least as many rows as the values have blocks.
shapes: Of the values, all known.
)doc");

}  // namespace ring_keras
