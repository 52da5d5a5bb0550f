#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {
namespace {

absl::Status UnchangedShapes(
    tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->input(i));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasBroadcast")
    .Input("tensors: N * T")
    .Output("copies: N * T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("roots: list(int) >= 1")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(UnchangedShapes)
    .Doc(R"doc(
Copies each tensor of one rank to all ranks of a communicator.

tensors: Sent together; same number, dtype and shapes on every rank.
copies: The tensors of those who send.
roots: By tensor, the sender's rank in the communicator.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
)doc");

}  // namespace ring_keras
