#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {

REGISTER_OP("RingKerasBroadcastPieces")
    .Input("own: M * T")
    .Output("tensors: N * T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("M: int >= 1")
    .Attr("N: int >= 0")
    .Attr("shapes: list(shape) >= 0")
    .Attr("ends: list(int) >= 1")
    .Attr("wholes: list(int) >= 1")
    .Attr("roots: list(int) >= 1")
    .Attr("apart: list(int) >= 1")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .SetIsStateful()  // Every rank must issue it.
    .SetShapeFn(ShapesFromAttribute)
    .Doc(R"doc(
Has all ranks take each piece of some tensors from the rank that has it.

own: Pieces that this rank has.
tensors: What comes of them, but for those of which this rank has all.
shapes: Of `tensors`.
ends: By piece, where among its tensor's elements it ends.
wholes: By piece, which of `tensors` it is of; -1: of none, as it is all of one.
roots: By piece, the rank in the communicator that has it.
apart: By piece, which of `own` it is; -1: another rank's.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
)doc");

}  // namespace ring_keras
