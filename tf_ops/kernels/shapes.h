// Shape functions that several ops share.
#ifndef RING_KERAS_KERNELS_SHAPES_H_
#define RING_KERAS_KERNELS_SHAPES_H_

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// The first output is like the first input, with any number of rows.
inline absl::Status AnyNumberOfRows(
    tensorflow::shape_inference::InferenceContext* context) {
  using tensorflow::shape_inference::ShapeHandle;
  ShapeHandle input;
  absl::Status status = context->WithRankAtLeast(context->input(0), 1, &input);
  if (!status.ok()) return status;
  ShapeHandle output;
  status = context->ReplaceDim(input, 0, context->UnknownDim(), &output);
  if (!status.ok()) return status;
  context->set_output(0, output);
  return absl::OkStatus();
}

// Those that the op's attribute `shapes` has, one for each output.
inline absl::Status ShapesFromAttribute(
    tensorflow::shape_inference::InferenceContext* context) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  absl::Status status = context->GetAttr("shapes", &shapes);
  if (!status.ok()) return status;
  if (static_cast<int>(shapes.size()) != context->num_outputs()) {
    return absl::InvalidArgumentError(StrCat("expected one shape per output, ",
                                             context->num_outputs(),
                                             ". Received: ", shapes.size()));
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    status = context->MakeShapeFromPartialTensorShape(shapes[i], &shape);
    if (!status.ok()) return status;
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_SHAPES_H_
