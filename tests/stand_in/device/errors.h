// What the errors are called.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_ERRORS_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_ERRORS_H_

#include "tests/stand_in/cuda_abi.h"

namespace ring_keras::stand_in {

struct ErrorDescription {
  int error;
  const char* name;
  const char* text;
};

inline ErrorDescription DescribeError(int error) {
  constexpr ErrorDescription kErrors[] = {
      {kCudaSuccess, "cudaSuccess", "no error"},
      {kCudaInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
      {kCudaOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
      {kCudaNoDevice, "cudaErrorNoDevice",
       "no CUDA-capable device is detected"},
      {kCudaInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
      {kCudaInvalidImage, "cudaErrorInvalidKernelImage",
       "device kernel image is invalid"},
      {kCudaInvalidContext, "cudaErrorDeviceUninitialized",
       "invalid device context"},
      {kCudaInvalidHandle, "cudaErrorInvalidResourceHandle",
       "invalid resource handle"},
      {kCudaNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
      {kCudaNotReady, "cudaErrorNotReady", "device not ready"},
      {kCudaIllegalAddress, "cudaErrorIllegalAddress",
       "an illegal memory access was encountered"},
  };
  for (const ErrorDescription& known : kErrors) {
    if (known.error == error) return known;
  }
  return {error, "unrecognized error code", "unrecognized error code"};
}

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_ERRORS_H_
