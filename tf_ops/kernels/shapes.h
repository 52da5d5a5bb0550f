// Shape functions that several ops share.
#ifndef RING_KERAS_KERNELS_SHAPES_H_
#define RING_KERAS_KERNELS_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

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

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_SHAPES_H_
