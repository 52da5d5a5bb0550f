#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace ring_keras {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Between the variables and the gradients, which come last, are scalars.
template <int kVariables>
absl::Status NothingOfScalars(InferenceContext* context) {
  int count = 0;
  const absl::Status counted = context->GetAttr("N", &count);
  if (!counted.ok()) return counted;
  ShapeHandle scalar;
  for (int i = kVariables * count; i < context->num_inputs() - count; ++i) {
    const absl::Status status =
        context->WithRank(context->input(i), 0, &scalar);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("RingKerasUpdateByMomentum")
    .Input("variables: N * resource")
    .Input("momenta: N * resource")
    .Input("rate: T")
    .Input("decay: T")
    .Input("gradients: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("begins: list(int)")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(NothingOfScalars<2>)
    .Doc(R"doc(
Updates variables as keras.optimizers.SGD with momentum does, rounding by rounding.

variables: Each of its gradient's shape; with a `begin` it may have more elements.
momenta: Each of its gradient's shape; they are updated, too.
rate: Scalar: the learning rate.
decay: Scalar: what is left of the momentum.
gradients: Of these elements.
begins: Of each the first element that is updated, in row-major order; -1: all are.
nesterov: Whether a variable is moved by what the next momentum would be.
)doc");

REGISTER_OP("RingKerasUpdateByAdam")
    .Input("variables: N * resource")
    .Input("momenta: N * resource")
    .Input("velocities: N * resource")
    .Input("rate: T")
    .Input("momentum_share: T")
    .Input("velocity_share: T")
    .Input("epsilon: T")
    .Input("gradients: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("begins: list(int)")
    .SetIsStateful()
    .SetShapeFn(NothingOfScalars<3>)
    .Doc(R"doc(
Updates variables as keras.optimizers.Adam does, rounding by rounding.

variables: Each of its gradient's shape; with a `begin` it may have more elements.
momenta: Each of its gradient's shape: means of gradients; they are updated, too.
velocities: Of the same shapes: means of squares; they are updated, too.
rate: Scalar: the learning rate with the corrections of both means.
momentum_share: Scalar: of the gradient in the new mean.
velocity_share: Scalar: of its square in the new mean.
epsilon: Scalar.
gradients: Of these elements.
begins: Of each the first element that is updated, in row-major order; -1: all are.
)doc");

}  // namespace ring_keras
