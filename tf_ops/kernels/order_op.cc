#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace ring_keras {

REGISTER_OP("RingKerasTakeOrder")
    .Input("order: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Has the collectives that follow in this computation come after those that `order`
came of. Only under XLA, which has kernels for it.

order: Scalar that RingKerasGiveOrder gave.
)doc");

REGISTER_OP("RingKerasGiveOrder")
    .Output("order: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
A value that comes of the last collective of this computation. Only under XLA, which
has kernels for it.

order: Scalar.
)doc");

}  // namespace ring_keras
