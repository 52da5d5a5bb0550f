// The device "CPU" of TensorFlow whose tensors peers can read.
#ifndef RING_KERAS_KERNELS_SHARED_CPU_DEVICE_H_
#define RING_KERAS_KERNELS_SHARED_CPU_DEVICE_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace ring_keras {

// Says, once and at the level "debug", if this process offers its tensors to
// peers but the kernel's CPU is TensorFlow's own, which was there before.
void SayIfTensorsArePrivate(tensorflow::OpKernelConstruction& construction);

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_SHARED_CPU_DEVICE_H_
