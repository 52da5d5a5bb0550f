// The CUDA runtime's, the driver's and NVRTC's functions that the stand-in
// exports, as their vendor declares them: its enumerations are ints here, its
// handles void*.
#ifndef RING_KERAS_TESTS_STAND_IN_CUDA_ABI_H_
#define RING_KERAS_TESTS_STAND_IN_CUDA_ABI_H_

#include <stddef.h>

#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

// The runtime's numbers and the driver's are the same.
enum CudaError : int {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaNoDevice = 100,
  kCudaInvalidDevice = 101,
  kCudaInvalidImage = 200,
  kCudaInvalidContext = 201,
  kCudaInvalidHandle = 400,
  kCudaNotFound = 500,
  kCudaNotReady = 600,
  kCudaIllegalAddress = 700,
  kCudaCaptureUnsupported = 900,
};

enum CudaFlag : unsigned {
  kCudaStreamNonBlocking = 1,
  kCudaEventDisableTiming = 2,
};

enum CudaCopyKind : int {
  kCudaHostToHost = 0,
  kCudaHostToDevice = 1,
  kCudaDeviceToHost = 2,
  kCudaDeviceToDevice = 3,
  kCudaCopyDefault = 4,
};

enum NvrtcResult : int {
  kNvrtcSuccess = 0,
  kNvrtcInvalidInput = 3,
  kNvrtcInvalidProgram = 4,
  kNvrtcInvalidOption = 5,
  kNvrtcCompilation = 6,
};

struct PointerAttributes {
  int type;  // 0 unknown, 1 host, 2 device.
  int device;
  void* device_pointer;
  void* host_pointer;
};

}  // namespace ring_keras::stand_in

extern "C" {

#define RING_KERAS_CUDA RING_KERAS_EXPORT int

// libcudart
RING_KERAS_CUDA cudaGetDeviceCount(int* count);
RING_KERAS_CUDA cudaSetDevice(int device);
RING_KERAS_CUDA cudaGetDevice(int* device);
RING_KERAS_CUDA cudaDeviceGetAttribute(int* value, int attribute, int device);
RING_KERAS_CUDA cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
RING_KERAS_CUDA cudaDeviceGetPCIBusId(char* id, int length, int device);
RING_KERAS_CUDA cudaDeviceSynchronize();
RING_KERAS_CUDA cudaRuntimeGetVersion(int* version);
RING_KERAS_CUDA cudaDriverGetVersion(int* version);
RING_KERAS_CUDA cudaGetLastError();
RING_KERAS_CUDA cudaPeekAtLastError();
RING_KERAS_EXPORT const char* cudaGetErrorName(int error);
RING_KERAS_EXPORT const char* cudaGetErrorString(int error);

RING_KERAS_CUDA cudaStreamCreate(void** stream);
RING_KERAS_CUDA cudaStreamCreateWithFlags(void** stream, unsigned flags);
RING_KERAS_CUDA cudaStreamCreateWithPriority(void** stream, unsigned flags,
                                             int priority);
RING_KERAS_CUDA cudaStreamDestroy(void* stream);
RING_KERAS_CUDA cudaStreamSynchronize(void* stream);
RING_KERAS_CUDA cudaStreamQuery(void* stream);
RING_KERAS_CUDA cudaStreamWaitEvent(void* stream, void* event, unsigned flags);
RING_KERAS_CUDA cudaStreamGetDevice(void* stream, int* device);
RING_KERAS_CUDA cudaLaunchHostFunc(void* stream, void (*function)(void*),
                                   void* argument);

RING_KERAS_CUDA cudaEventCreate(void** event);
RING_KERAS_CUDA cudaEventCreateWithFlags(void** event, unsigned flags);
RING_KERAS_CUDA cudaEventDestroy(void* event);
RING_KERAS_CUDA cudaEventRecord(void* event, void* stream);
RING_KERAS_CUDA cudaEventQuery(void* event);
RING_KERAS_CUDA cudaThreadExchangeStreamCaptureMode(int* mode);
RING_KERAS_CUDA cudaEventSynchronize(void* event);
RING_KERAS_CUDA cudaEventElapsedTime(float* milliseconds, void* start,
                                     void* end);

RING_KERAS_CUDA cudaMalloc(void** memory, size_t size);
RING_KERAS_CUDA cudaFree(void* memory);
RING_KERAS_CUDA cudaMallocAsync(void** memory, size_t size, void* stream);
RING_KERAS_CUDA cudaFreeAsync(void* memory, void* stream);
RING_KERAS_CUDA cudaMallocHost(void** memory, size_t size);
RING_KERAS_CUDA cudaHostAlloc(void** memory, size_t size, unsigned flags);
RING_KERAS_CUDA cudaFreeHost(void* memory);
RING_KERAS_CUDA cudaMemGetInfo(size_t* free, size_t* total);
RING_KERAS_CUDA cudaMemcpy(void* to, const void* from, size_t size, int kind);
RING_KERAS_CUDA cudaMemcpyAsync(void* to, const void* from, size_t size,
                                int kind, void* stream);
RING_KERAS_CUDA cudaMemset(void* memory, int value, size_t size);
RING_KERAS_CUDA cudaMemsetAsync(void* memory, int value, size_t size,
                                void* stream);
RING_KERAS_CUDA cudaPointerGetAttributes(
    ring_keras::stand_in::PointerAttributes* attributes, const void* pointer);

// libcuda
RING_KERAS_CUDA cuInit(unsigned flags);
RING_KERAS_CUDA cuDriverGetVersion(int* version);
RING_KERAS_CUDA cuGetErrorName(int error, const char** name);
RING_KERAS_CUDA cuGetErrorString(int error, const char** text);
RING_KERAS_CUDA cuDeviceGetCount(int* count);
RING_KERAS_CUDA cuDeviceGet(int* device, int ordinal);
RING_KERAS_CUDA cuDeviceGetName(char* name, int length, int device);
RING_KERAS_CUDA cuDeviceCanAccessPeer(int* can, int device, int peer);
RING_KERAS_CUDA cuModuleLoadData(void** module, const void* image);
RING_KERAS_CUDA cuModuleUnload(void* module);
RING_KERAS_CUDA cuModuleGetFunction(void** function, void* module,
                                    const char* name);
RING_KERAS_CUDA cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z,
                               unsigned shared_bytes, void* stream,
                               void** parameters, void** extra);

// libnvrtc
RING_KERAS_CUDA nvrtcVersion(int* major, int* minor);
RING_KERAS_CUDA nvrtcGetNumSupportedArchs(int* count);
RING_KERAS_CUDA nvrtcGetSupportedArchs(int* architectures);
RING_KERAS_CUDA nvrtcCreateProgram(void** program, const char* source,
                                   const char* name, int header_count,
                                   const char* const* headers,
                                   const char* const* include_names);
RING_KERAS_CUDA nvrtcDestroyProgram(void** program);
RING_KERAS_CUDA nvrtcCompileProgram(void* program, int option_count,
                                    const char* const* options);
RING_KERAS_CUDA nvrtcGetCUBINSize(void* program, size_t* size);
RING_KERAS_CUDA nvrtcGetCUBIN(void* program, char* image);
RING_KERAS_CUDA nvrtcGetPTXSize(void* program, size_t* size);
RING_KERAS_CUDA nvrtcGetPTX(void* program, char* image);
RING_KERAS_CUDA nvrtcGetProgramLogSize(void* program, size_t* size);
RING_KERAS_CUDA nvrtcGetProgramLog(void* program, char* log);
RING_KERAS_EXPORT const char* nvrtcGetErrorString(int result);

#undef RING_KERAS_CUDA
}

#endif  // RING_KERAS_TESTS_STAND_IN_CUDA_ABI_H_
