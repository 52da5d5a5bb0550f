#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace ring_keras {

REGISTER_OP("RingKerasBarrier")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .SetIsStateful()  // Never fold, merge or prune: every rank must issue it.
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Waits until all ranks of a communicator have arrived.

request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
)doc");

}  // namespace ring_keras
