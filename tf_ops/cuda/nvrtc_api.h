// The part of NVRTC, NVIDIA's run-time compiler, that we use.
#ifndef RING_KERAS_CUDA_NVRTC_API_H_
#define RING_KERAS_CUDA_NVRTC_API_H_

#include <cstddef>

#include "tf_ops/common/status.h"

namespace ring_keras::cuda {

using ProgramHandle = void*;  // nvrtcProgram

// Functions are named as in libnvrtc, without their "nvrtc".
struct NvrtcApi {
  const char* (*GetErrorString)(int error);
  int (*Version)(int* major, int* minor);
  int (*GetNumSupportedArchs)(int* count);
  int (*GetSupportedArchs)(int* architectures);
  int (*CreateProgram)(ProgramHandle* program, const char* source,
                       const char* name, int header_count,
                       const char* const* headers,
                       const char* const* header_names);
  int (*DestroyProgram)(ProgramHandle* program);
  int (*CompileProgram)(ProgramHandle program, int option_count,
                        const char* const* options);
  int (*GetProgramLogSize)(ProgramHandle program, size_t* nbytes);
  int (*GetProgramLog)(ProgramHandle program, char* log);
  int (*GetCUBINSize)(ProgramHandle program, size_t* nbytes);
  int (*GetCUBIN)(ProgramHandle program, char* cubin);
  int (*GetPTXSize)(ProgramHandle program, size_t* nbytes);
  int (*GetPTX)(ProgramHandle program, char* ptx);
};

// The compiler, opened by the first call; any thread. Internal: there is none,
// or it is older than CUDA 12.0.
StatusOr<const NvrtcApi*> GetNvrtc();

// As ToStatus() of the runtime. Requires that GetNvrtc() has succeeded.
Status NvrtcStatus(int error, const char* what);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_NVRTC_API_H_
