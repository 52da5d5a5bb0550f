#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {

REGISTER_OP("RingKerasAllreduceStart")
    .Input("tensors: N * T")
    .Input("prescale: double")
    .Input("postscale: double")
    .Input("weight: W * double")
    .Output("handle: variant")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("W: int >= 0 = 0")
    .Attr("reduce_op: {'sum', 'average', 'min', 'max', 'product'}")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .Attr("wait_follows: bool = false")
    .Attr("wire_dtype: {'none', 'bfloat16', 'float16'} = 'none'")
    .Attr("step: {'none', 'begins', 'begins_apart', 'continues'} = 'none'")
    .Attr("plan: int = 0")
    .Attr("splits: list(int) = []")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Starts reducing tensors over all ranks of a communicator, and returns at once.

tensors: Reduced together; same number, dtype and shapes on every rank.
prescale: Scalar that multiplies this rank's tensors before the reduction.
postscale: Scalar that multiplies the results.
weight: None or one scalar, for an average: this rank's weight, 0 or more. The
  result is the sum of weight x tensor over the sum of the weights, and 0 if all
  weights are.
handle: For RingKerasAllreduceWait, which also reports errors.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
step: Whether the request is the first of a new step of the communicator, one of
  the step begun last, or in none. Requests in different steps never meet. A step
  that begins apart is not measured as one of the rank's training.
plan: In a step, the number of the plan that it follows; the same on every rank.
wait_follows: Whether nothing is left that could overlap with the collective, so
  that the thread of this op may as well carry it out.
splits: How many elements of the tensors, one behind the other, each rank gets;
  empty: each gets all. Then there is one result, of these elements.
wire_dtype: How float32 travels between hosts; 'none' is as it is.
)doc");

}  // namespace ring_keras
