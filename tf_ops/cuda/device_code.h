// Our device code, compiled at run time, so that users need no CUDA compiler
// and there is one package for every GPU.
#ifndef RING_KERAS_CUDA_DEVICE_CODE_H_
#define RING_KERAS_CUDA_DEVICE_CODE_H_

#include <string>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras::cuda {

// The text of device_arguments.h and device_code.inc.
extern const char kDeviceCode[];

// What NVRTC makes of it: for "sm_90" machine code (a cubin) that devices of
// compute capability 9.0 run, for "compute_90" PTX that the driver compiles for
// newer ones, too. Takes about a second.
//
// Errors: Internal (no compiler, or it does not know the architecture).
RING_KERAS_EXPORT StatusOr<std::string> CompileDeviceCode(
    const std::string& architecture);

// The architecture to compile for, for a device of compute capability 9.0 if
// `capability` is 90: its own, or PTX of the newest that the compiler knows.
//
// Errors: Internal (no compiler, or it is too new for the device).
RING_KERAS_EXPORT StatusOr<std::string> ArchitectureFor(int capability);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_DEVICE_CODE_H_
