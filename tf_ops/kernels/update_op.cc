#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace ring_keras {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Between the variables and the gradient, which comes last, are scalars.
template <int kVariables>
absl::Status NothingOfScalars(InferenceContext* context) {
  ShapeHandle scalar;
  for (int i = kVariables; i < context->num_inputs() - 1; ++i) {
    const absl::Status status =
        context->WithRank(context->input(i), 0, &scalar);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasUpdateByMomentum")
    .Input("variable: resource")
    .Input("momentum: resource")
    .Input("rate: T")
    .Input("decay: T")
    .Input("gradient: T")
    .Attr("T: {float, double}")
    .Attr("begin: int >= -1 = -1")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(NothingOfScalars<2>)
    .Doc(R"doc(
Updates a variable as keras.optimizers.SGD with momentum does, rounding by rounding.

variable: Of the gradient's shape; with `begin` it may have more elements.
momentum: Of the gradient's shape; it is updated, too.
rate: Scalar: the learning rate.
decay: Scalar: what is left of the momentum.
gradient: Of these elements.
begin: The first element that is updated, in row-major order; -1: all are.
nesterov: Whether the variable is moved by what the next momentum would be.
)doc");

REGISTER_OP("RingKerasUpdateByAdam")
    .Input("variable: resource")
    .Input("momentum: resource")
    .Input("velocity: resource")
    .Input("rate: T")
    .Input("momentum_share: T")
    .Input("velocity_share: T")
    .Input("epsilon: T")
    .Input("gradient: T")
    .Attr("T: {float, double}")
    .Attr("begin: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(NothingOfScalars<3>)
    .Doc(R"doc(
Updates a variable as keras.optimizers.Adam does, rounding by rounding.

variable: Of the gradient's shape; with `begin` it may have more elements.
momentum: Of the gradient's shape: the mean of the gradients; it is updated, too.
velocity: Of the same shape: the mean of their squares; it is updated, too.
rate: Scalar: the learning rate with the corrections of both means.
momentum_share: Scalar: of the gradient in the new mean.
velocity_share: Scalar: of its square in the new mean.
epsilon: Scalar.
gradient: Of these elements.
begin: The first element that is updated, in row-major order; -1: all are.
)doc");

}  // namespace ring_keras
