// The part of the CUDA driver's interface that we use: loading and launching
// code that was compiled at run time.
#ifndef RING_KERAS_CUDA_DRIVER_API_H_
#define RING_KERAS_CUDA_DRIVER_API_H_

#include "tf_ops/common/status.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::cuda {

using ModuleHandle = void*;    // CUmodule
using FunctionHandle = void*;  // CUfunction

// Functions are named as in libcuda, without their "cu".
struct DriverApi {
  int (*GetErrorString)(int error, const char** text);
  int (*ModuleLoadData)(ModuleHandle* module, const void* image);
  int (*ModuleGetFunction)(FunctionHandle* function, ModuleHandle module,
                           const char* name);
  int (*FuncLoad)(FunctionHandle function);  // Null before CUDA 12.4.
  int (*LaunchKernel)(FunctionHandle function, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared_nbytes,
                      StreamHandle stream, void** parameters, void** extra);
};

// The driver, opened by the first call; any thread. Internal: this machine has
// none.
StatusOr<const DriverApi*> GetDriver();

// As ToStatus() of the runtime. Requires that GetDriver() has succeeded.
Status DriverStatus(int error, const char* what);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_DRIVER_API_H_
