// What a rank has to say of an average.
#ifndef RING_KERAS_KERNELS_OWN_PART_H_
#define RING_KERAS_KERNELS_OWN_PART_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/common/status.h"
#include "tf_ops/kernels/flat_tensors.h"
#include "tf_ops/reduce/weighted_sum.h"

namespace ring_keras {

// Inputs called `values` and `residuals`, alike, and a scalar `share`: a rank
// has share * value + residual to say.
struct OwnPart {
  // Computes `count` elements of tensor `index`, from `place` on.
  void Compute(int64_t index, int64_t place, int64_t count, float* part) const {
    WeightedSum(values[index].flat<float>().data() + place, share,
                residuals[index].flat<float>().data() + place, count, part);
  }

  absl::Status Read(tensorflow::OpKernelContext* context) {
    absl::Status status = context->input_list("values", &values);
    if (status.ok()) status = context->input_list("residuals", &residuals);
    if (!status.ok()) return status;
    const tensorflow::Tensor* scalar = nullptr;
    status = context->input("share", &scalar);
    if (!status.ok()) return status;
    if (!tensorflow::TensorShapeUtils::IsScalar(scalar->shape())) {
      return absl::InvalidArgumentError(
          StrCat(context->op_kernel().type_string(),
                 ": expected a scalar as share, got one of shape ",
                 scalar->shape().DebugString(), "."));
    }
    share = scalar->scalar<float>()();
    for (int i = 0; i < values.size(); ++i) {
      if (values[i].shape() != residuals[i].shape()) {
        return absl::InvalidArgumentError(
            StrCat(context->op_kernel().type_string(),
                   ": expected a residual of the shape of each value, got ",
                   residuals[i].shape().DebugString(), " for ",
                   values[i].shape().DebugString(), "."));
      }
      places.Add(values[i].NumElements());
      shapes.push_back(values[i].shape());
    }
    return absl::OkStatus();
  }

  tensorflow::OpInputList values;
  tensorflow::OpInputList residuals;
  float share = 0;
  FlatTensors places;
  std::vector<tensorflow::TensorShape> shapes;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_OWN_PART_H_
