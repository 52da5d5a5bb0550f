#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/shapes.h"

namespace ring_keras {

REGISTER_OP("RingKerasReduceScatter")
    .Input("tensor: T")
    .Input("prescale: double")
    .Input("postscale: double")
    .Output("part: T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product'}")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(AnyNumberOfRows)
    .Doc(R"doc(
Reduces a tensor over all ranks of a communicator and deals out its rows.

tensor: At least one dimension; same dtype and shape on every rank.
prescale: Scalar that multiplies this rank's tensor before the reduction.
postscale: Scalar that multiplies the result.
part: Rank 0 gets the first rows, and so on; where they do not divide evenly,
  the first ranks get one more.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
)doc");

}  // namespace ring_keras
