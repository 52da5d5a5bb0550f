#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/kernels/conversions.h"

namespace ring_keras {

REGISTER_OP("RingKerasShareVariables")
    .Input("variables: N * resource")
    .Input("pieces: M * resource")
    .Attr("T: " RING_KERAS_DTYPES)
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("ends: list(int) >= 1")
    .Attr("wholes: list(int) >= 1")
    .Attr("roots: list(int) >= 1")
    .Attr("apart: list(int) >= 1")
    .Attr("request_name: string")
    .Attr("communicator_id: int = 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Has all ranks take each piece of some variables from the rank that has updated it.

The collective has the variables' own memory.

variables: Of one type; same number and shapes on every rank.
pieces: Variables with what this rank has updated apart from the whole ones.
ends: By piece, where among the variable's elements it ends.
wholes: By piece, which of `variables` it is of.
roots: By piece, the rank in the communicator that has updated it.
apart: By piece, which of `pieces` has it on this rank; -1: the variable itself.
request_name: Pairs this request with its peers.
communicator_id: 0 holds every rank.
)doc");

}  // namespace ring_keras
