#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {

REGISTER_OP("RingKerasDepart")
    .Input("tensors: N * T")
    .Input("weight: W * double")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("W: int >= 0 = 0")
    .Attr("kind: {'average', 'allgather', 'alltoall'}")
    .Attr("slot: int >= 1")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("wire_dtype: {'none', 'bfloat16', 'float16'} = 'none'")
    .Attr("step: {'none', 'begins', 'begins_apart', 'continues'} = 'none'")
    .Attr("plan: int = 0")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Starts a collective whose results RingKerasArrive takes, in a later run.

tensors: Copied. One, with as many rows on every rank, but for an average.
weight: Of an average, one scalar: this rank's weight, as in
  RingKerasAllreduceStart.
slot: Where RingKerasArrive looks for it. What was there is forgotten.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
wire_dtype: How an average of float32 travels between hosts.
step: See RingKerasAllreduceStart.
plan: See there.
)doc");

REGISTER_OP("RingKerasArrive")
    .Output("results: N * T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("slot: int >= 1")
    .Attr("request_name: string")
    .SetIsStateful()
    .SetShapeFn(ShapesFromAttribute)
    .Doc(R"doc(
Waits for what RingKerasDepart has put into a slot, and takes it from there.

results: Of an allgather or alltoall, one.
shapes: Theirs, which must be known.
slot: As given to RingKerasDepart.
request_name: For messages.
)doc");

}  // namespace ring_keras
