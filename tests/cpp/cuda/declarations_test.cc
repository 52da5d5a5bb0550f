// Our declarations of NVIDIA's functions, compared with NVIDIA's own. That this
// file compiles is the test.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "tests/cpp/support/same_abi.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/cuda/driver_api.h"
#include "tf_ops/cuda/nvrtc_api.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::testing {
namespace {

#define CHECK_RUNTIME(name)                                               \
  static_assert(                                                          \
      SameAbi<decltype(cuda::RuntimeApi::name), decltype(&cuda##name)>(), \
      "cuda" #name)

CHECK_RUNTIME(DriverGetVersion);
CHECK_RUNTIME(RuntimeGetVersion);
CHECK_RUNTIME(GetDeviceCount);
CHECK_RUNTIME(SetDevice);
CHECK_RUNTIME(DeviceGetAttribute);
CHECK_RUNTIME(DeviceGetStreamPriorityRange);
CHECK_RUNTIME(GetErrorString);
CHECK_RUNTIME(GetLastError);
CHECK_RUNTIME(StreamCreateWithPriority);
CHECK_RUNTIME(StreamDestroy);
CHECK_RUNTIME(StreamSynchronize);
CHECK_RUNTIME(StreamWaitEvent);
CHECK_RUNTIME(EventCreateWithFlags);
CHECK_RUNTIME(EventRecord);
CHECK_RUNTIME(EventQuery);
CHECK_RUNTIME(ThreadExchangeStreamCaptureMode);
CHECK_RUNTIME(Malloc);
CHECK_RUNTIME(Free);
CHECK_RUNTIME(MemcpyAsync);
CHECK_RUNTIME(MemsetAsync);

#define CHECK_DRIVER(name)                                             \
  static_assert(                                                       \
      SameAbi<decltype(cuda::DriverApi::name), decltype(&cu##name)>(), \
      "cu" #name)

CHECK_DRIVER(GetErrorString);
CHECK_DRIVER(ModuleLoadData);
CHECK_DRIVER(ModuleGetFunction);
#if CUDA_VERSION >= 12040
CHECK_DRIVER(FuncLoad);
#endif
CHECK_DRIVER(LaunchKernel);

#define CHECK_NVRTC(name)                                                \
  static_assert(                                                         \
      SameAbi<decltype(cuda::NvrtcApi::name), decltype(&nvrtc##name)>(), \
      "nvrtc" #name)

CHECK_NVRTC(GetErrorString);
CHECK_NVRTC(Version);
CHECK_NVRTC(GetNumSupportedArchs);
CHECK_NVRTC(GetSupportedArchs);
CHECK_NVRTC(CreateProgram);
CHECK_NVRTC(DestroyProgram);
CHECK_NVRTC(CompileProgram);
CHECK_NVRTC(GetProgramLogSize);
CHECK_NVRTC(GetProgramLog);
CHECK_NVRTC(GetCUBINSize);
CHECK_NVRTC(GetCUBIN);
CHECK_NVRTC(GetPTXSize);
CHECK_NVRTC(GetPTX);

// A runtime's function with another signature must not pass.
static_assert(!SameAbi<int (*)(int*), decltype(&cudaSetDevice)>());
static_assert(!SameAbi<int (*)(), decltype(&cudaSetDevice)>());
static_assert(!SameAbi<int (*)(long), decltype(&cudaSetDevice)>());

RING_TEST(ConstantsAreNvidias) {
  EXPECT_EQ(cuda::kSuccess, int{cudaSuccess});
  EXPECT_EQ(cuda::kSuccess, int{CUDA_SUCCESS});
  EXPECT_EQ(cuda::kErrorMemoryAllocation, int{cudaErrorMemoryAllocation});
  EXPECT_EQ(cuda::kErrorMemoryAllocation, int{CUDA_ERROR_OUT_OF_MEMORY});
  EXPECT_EQ(cuda::kErrorNotReady, int{cudaErrorNotReady});
  EXPECT_EQ(cuda::kAttributeCapabilityMajor,
            int{cudaDevAttrComputeCapabilityMajor});
  EXPECT_EQ(cuda::kAttributeCapabilityMinor,
            int{cudaDevAttrComputeCapabilityMinor});
  EXPECT_EQ(cuda::kMemcpyHostToDevice, int{cudaMemcpyHostToDevice});
  EXPECT_EQ(cuda::kMemcpyDeviceToHost, int{cudaMemcpyDeviceToHost});
  EXPECT_EQ(cuda::kMemcpyDeviceToDevice, int{cudaMemcpyDeviceToDevice});
  EXPECT_EQ(cuda::kStreamNonBlocking, cudaStreamNonBlocking);
  EXPECT_EQ(cuda::kEventDisableTiming, cudaEventDisableTiming);
}

}  // namespace
}  // namespace ring_keras::testing
