// Outputs of float seen as one vector.
#ifndef RING_KERAS_KERNELS_FLAT_OUTPUTS_H_
#define RING_KERAS_KERNELS_FLAT_OUTPUTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/flat_tensors.h"

namespace ring_keras {

struct FlatOutputs {
  // Of the list of outputs called `name`.
  absl::Status Allocate(tensorflow::OpKernelContext* context, const char* name,
                        const std::vector<tensorflow::TensorShape>& shapes) {
    tensorflow::OpOutputList outputs;
    absl::Status status = context->output_list(name, &outputs);
    for (size_t i = 0; status.ok() && i < shapes.size(); ++i) {
      tensorflow::Tensor* output = nullptr;
      status = outputs.allocate(static_cast<int>(i), shapes[i], &output);
      if (status.ok()) Add(output);
    }
    return status;
  }

  void Add(tensorflow::Tensor* output) {
    places.Add(output->NumElements());
    data.push_back(output->flat<float>().data());
  }

  FlatTensors places;
  std::vector<float*> data;  // Of each.
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_FLAT_OUTPUTS_H_
