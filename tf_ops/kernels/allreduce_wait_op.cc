#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {

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
