#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {
namespace {

absl::Status RowsAndSplits(
    tensorflow::shape_inference::InferenceContext* context) {
  absl::Status status = AnyNumberOfRows(context);
  if (!status.ok()) return status;
  tensorflow::shape_inference::ShapeHandle splits;
  status = context->WithRank(context->input(1), 1, &splits);
  if (!status.ok()) return status;
  context->set_output(1, context->Vector(context->UnknownDim()));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasAlltoall")
    .Input("tensor: T")
    .Input("splits: int64")
    .Output("received: T")
    .Output("received_splits: int64")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("step: {'none', 'begins', 'begins_apart', 'continues'} = 'none'")
    .Attr("plan: int = 0")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(RowsAndSplits)
    .Doc(R"doc(
Sends rows of a tensor to every rank of a communicator, and receives from each.

tensor: At least one dimension; all but the first agree on every rank.
splits: Rows for each rank, in order; empty deals them out evenly.
received: The rows from rank 0, then those from rank 1, and so on.
received_splits: Rows that came from each rank.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
step: Whether the request is the first of a new step of the communicator, one of
  the step begun last, or in none. Requests in different steps never meet. A step
  that begins apart is not measured as one of the rank's training.
plan: In a step, the number of the plan that it follows; the same on every rank.
)doc");

}  // namespace ring_keras
