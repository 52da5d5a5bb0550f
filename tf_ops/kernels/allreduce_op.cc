#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {

REGISTER_OP("RingKerasAllreduce")
    .Input("tensor: T")
    .Input("prescale: double")
    .Input("postscale: double")
    .Output("reduced: T")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product'}")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("wire_dtype: {'none', 'bfloat16', 'float16'} = 'none'")
    .Attr("step: {'none', 'begins', 'begins_apart', 'continues'} = 'none'")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Reduces a tensor elementwise over all ranks of a communicator.

tensor: Same dtype and shape on every rank.
prescale: Scalar that multiplies this rank's tensor before the reduction.
postscale: Scalar that multiplies the result.
reduced: Bitwise equal on every rank.
request_name: Pairs this request with its peers: the n-th use of a name on one
  rank meets the n-th on every other.
communicator_id: 0 holds every rank.
step: Whether the request is the first of a new step of the communicator, one of
  the step begun last, or in none. Requests in different steps never meet. A step
  that begins apart is not measured as one of the rank's training.
wire_dtype: How float32 travels between hosts; 'none' is as it is.
)doc");

}  // namespace ring_keras
