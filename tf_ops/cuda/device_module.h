// The device code where it runs: compiled, loaded, its kernels looked up.
#ifndef RING_KERAS_CUDA_DEVICE_MODULE_H_
#define RING_KERAS_CUDA_DEVICE_MODULE_H_

#include "tf_ops/common/status.h"
#include "tf_ops/cuda/device_arguments.h"
#include "tf_ops/cuda/driver_api.h"

namespace ring_keras::cuda {

// The kernels of a device. The first call for a device compiles (once per
// architecture) and loads; the others look up. Any thread; `device` becomes its
// current one. A failure is the answer to every later call, too.
StatusOr<FunctionHandle> GetKernel(int device, Kernel kernel);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_DEVICE_MODULE_H_
