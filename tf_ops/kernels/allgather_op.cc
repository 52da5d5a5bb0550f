#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {

REGISTER_OP("RingKerasAllgather")
    .Input("tensor: T")
    .Output("gathered: T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("step: {'none', 'begins', 'begins_apart', 'continues'} = 'none'")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(AnyNumberOfRows)
    .Doc(R"doc(
Concatenates the tensors of all ranks of a communicator along dimension 0.

tensor: At least one dimension; all but the first agree on every rank.
gathered: The rows of rank 0, then those of rank 1, and so on.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
step: Whether the request is the first of a new step of the communicator, one of
  the step begun last, or in none. Requests in different steps never meet. A step
  that begins apart is not measured as one of the rank's training.
)doc");

}  // namespace ring_keras
