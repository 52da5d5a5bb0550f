// The part of the CUDA runtime that we use, declared by ourselves so that no
// CUDA header is needed to build. tests/cpp/cuda/declarations_test.cc compares
// the declarations with NVIDIA's where those are installed.
#ifndef RING_KERAS_CUDA_RUNTIME_API_H_
#define RING_KERAS_CUDA_RUNTIME_API_H_

#include <cstddef>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras::cuda {

using StreamHandle = void*;  // cudaStream_t, which is CUstream.
using EventHandle = void*;   // cudaEvent_t

// cudaError_t
constexpr int kSuccess = 0;
constexpr int kErrorMemoryAllocation = 2;
constexpr int kErrorNotReady = 600;
// cudaDeviceAttr
constexpr int kAttributeCapabilityMajor = 75;
constexpr int kAttributeCapabilityMinor = 76;
// cudaMemcpyKind
constexpr int kMemcpyHostToDevice = 1;
constexpr int kMemcpyDeviceToHost = 2;
constexpr int kMemcpyDeviceToDevice = 3;
// Flags
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
// cudaStreamCaptureMode
constexpr int kCaptureModeRelaxed = 2;

// Functions are named as in libcudart, without their "cuda".
struct RuntimeApi {
  int (*DriverGetVersion)(int* version);
  int (*RuntimeGetVersion)(int* version);
  int (*GetDeviceCount)(int* count);
  int (*SetDevice)(int device);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*DeviceGetStreamPriorityRange)(int* least, int* greatest);
  const char* (*GetErrorString)(int error);
  int (*GetLastError)();
  int (*StreamCreateWithPriority)(StreamHandle* stream, unsigned flags,
                                  int priority);
  int (*StreamDestroy)(StreamHandle stream);
  int (*StreamSynchronize)(StreamHandle stream);
  int (*StreamWaitEvent)(StreamHandle stream, EventHandle event,
                         unsigned flags);
  int (*EventCreateWithFlags)(EventHandle* event, unsigned flags);
  int (*EventRecord)(EventHandle event, StreamHandle stream);
  int (*EventQuery)(EventHandle event);
  int (*ThreadExchangeStreamCaptureMode)(int* mode);
  int (*Malloc)(void** memory, size_t nbytes);
  int (*Free)(void* memory);
  int (*MemcpyAsync)(void* to, const void* from, size_t nbytes, int kind,
                     StreamHandle stream);
  int (*MemsetAsync)(void* memory, int value, size_t nbytes,
                     StreamHandle stream);
};

// The runtime, opened by the first call; any thread. Internal: there is none,
// or no driver, or it is older than CUDA 12.0; the same answer to every call.
RING_KERAS_EXPORT StatusOr<const RuntimeApi*> GetRuntime();

// For a thread of ours, when it begins: what it asks of CUDA neither disturbs
// another thread that captures a graph, which ours is no part of, nor is
// refused. Requires that GetRuntime() has succeeded.
void IgnoreCaptures();

// What a call to the runtime returned, with `what` (as in "recording an event")
// and CUDA's own words if it failed. ResourceExhausted: out of memory;
// otherwise Internal. Requires that GetRuntime() has succeeded.
RING_KERAS_EXPORT Status ToStatus(int cuda_error, const char* what);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_RUNTIME_API_H_
