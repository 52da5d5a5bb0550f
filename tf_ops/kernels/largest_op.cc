#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status LargestAndLeft(InferenceContext* context) {
  std::vector<int64_t> kept;
  const absl::Status status = context->GetAttr("kept", &kept);
  if (!status.ok()) return status;
  int64_t count = 0;
  for (const int64_t one : kept) count += one;
  context->set_output(0, context->MakeShape({1, 2, count}));
  for (int i = 1; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(i - 1));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasTakeLargest")
    .Input("values: N * float")
    .Input("residuals: N * float")
    .Input("share: float")
    .Output("message: int32")
    .Output("left: N * float")
    .Attr("N: int >= 0")
    .Attr("kept: list(int)")
    .SetShapeFn(LargestAndLeft)
    .Doc(R"doc(
Takes from share * values + residuals those of the largest magnitude.

residuals: Like `values`.
share: Scalar.
message: A row of places in all values, one behind the other, and one of the bits
  of what is there: those of the first tensor, in ascending order, then those of
  the next. Of equal ones the first; what is not finite is larger than all else.
left: What has not been taken, and zeros where it has.
kept: How many of each tensor.
)doc");

REGISTER_OP("RingKerasSumLargest")
    .Input("messages: int32")
    .Output("sums: N * float")
    .Attr("N: int >= 0")
    .Attr("kept: list(int)")
    .Attr("shapes: list(shape)")
    .SetShapeFn(ShapesFromAttribute)
    .Doc(R"doc(
Adds up what ranks have sent of RingKerasTakeLargest.

messages: Of each rank; those of a tensor may be in any order.
sums: From the first rank to the last; zeros where nothing was sent.
kept: As given to RingKerasTakeLargest.
shapes: Of the sums, all known.
)doc");

}  // namespace ring_keras
