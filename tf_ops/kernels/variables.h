// What kernels do with TensorFlow's variables.
#ifndef RING_KERAS_KERNELS_VARIABLES_H_
#define RING_KERAS_KERNELS_VARIABLES_H_

#include <cstring>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace ring_keras {

// Has a locked variable be one that nobody else reads, for writing: whoever has
// read it keeps what it was.
inline absl::Status MakeOwn(tensorflow::OpKernelContext* context,
                            tensorflow::Var& variable) {
  tensorflow::Tensor& tensor = *variable.tensor();
  if (!variable.is_initialized) {
    return absl::FailedPreconditionError(
        "A variable was updated that has no value.");
  }
  if (tensor.RefCountIsOne()) return absl::OkStatus();
  tensorflow::Tensor own;
  const absl::Status status =
      context->allocate_temp(tensor.dtype(), tensor.shape(), &own);
  if (!status.ok()) return status;
  std::memcpy(own.data(), tensor.data(), tensor.TotalBytes());
  tensor = own;
  return absl::OkStatus();
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_VARIABLES_H_
