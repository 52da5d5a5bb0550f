// The GPU stream that TensorFlow gives a kernel's work to.
#ifndef RING_KERAS_KERNELS_DEVICE_STREAM_H_
#define RING_KERAS_KERNELS_DEVICE_STREAM_H_

#include <optional>

#include "tensorflow/core/framework/op_kernel.h"

namespace ring_keras {

struct DeviceStream {
  int device;    // As CUDA numbers it.
  void* stream;  // A cudaStream_t.
};

// None if the kernel runs on a CPU, or if `memory`, where its tensors are, is
// the host's.
std::optional<DeviceStream> StreamOf(tensorflow::OpKernelContext* context,
                                     tensorflow::MemoryType memory);

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_DEVICE_STREAM_H_
