#include "tf_ops/cuda/runtime_api.h"

#include "tf_ops/cuda/driver_api.h"
#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::cuda {
namespace {

StatusOr<const RuntimeApi*> LoadRuntime() {
  // Without a driver the runtime opens, but answers every call with a riddle.
  if (StatusOr<const DriverApi*> driver = GetDriver(); !driver.ok()) {
    return driver.status();
  }
  StatusOr<void*> handle = OpenLibrary(kRuntimeLibrary);
  if (!handle.ok()) return handle.status();
  static RuntimeApi api;
  Symbols symbols(kRuntimeLibrary, handle.value());
  symbols.Find("cudaDriverGetVersion", &api.DriverGetVersion);
  symbols.Find("cudaRuntimeGetVersion", &api.RuntimeGetVersion);
  symbols.Find("cudaGetDeviceCount", &api.GetDeviceCount);
  symbols.Find("cudaSetDevice", &api.SetDevice);
  symbols.Find("cudaDeviceGetAttribute", &api.DeviceGetAttribute);
  symbols.Find("cudaDeviceGetStreamPriorityRange",
               &api.DeviceGetStreamPriorityRange);
  symbols.Find("cudaGetErrorString", &api.GetErrorString);
  symbols.Find("cudaGetLastError", &api.GetLastError);
  symbols.Find("cudaStreamCreateWithPriority", &api.StreamCreateWithPriority);
  symbols.Find("cudaStreamDestroy", &api.StreamDestroy);
  symbols.Find("cudaStreamSynchronize", &api.StreamSynchronize);
  symbols.Find("cudaStreamWaitEvent", &api.StreamWaitEvent);
  symbols.Find("cudaEventCreateWithFlags", &api.EventCreateWithFlags);
  symbols.Find("cudaEventRecord", &api.EventRecord);
  symbols.Find("cudaEventQuery", &api.EventQuery);
  symbols.Find("cudaThreadExchangeStreamCaptureMode",
               &api.ThreadExchangeStreamCaptureMode);
  symbols.Find("cudaMalloc", &api.Malloc);
  symbols.Find("cudaFree", &api.Free);
  symbols.Find("cudaMemcpyAsync", &api.MemcpyAsync);
  symbols.Find("cudaMemsetAsync", &api.MemsetAsync);
  RING_KERAS_RETURN_IF_ERROR(symbols.status());
  int version = 0;
  if (const int error = api.RuntimeGetVersion(&version); error != kSuccess) {
    return Status(StatusCode::kInternal,
                  StrCat("asking the CUDA runtime for its version: ",
                         api.GetErrorString(error)));
  }
  RING_KERAS_RETURN_IF_ERROR(
      CheckVersion(kRuntimeLibrary, CudaVersion(version), Version{12, 0}));
  return &api;
}

}  // namespace

StatusOr<const RuntimeApi*> GetRuntime() {
  static const StatusOr<const RuntimeApi*> runtime = LoadRuntime();
  return runtime;
}

void IgnoreCaptures() {
  int mode = kCaptureModeRelaxed;
  GetRuntime().value()->ThreadExchangeStreamCaptureMode(&mode);
}

Status ToStatus(int cuda_error, const char* what) {
  if (cuda_error == kSuccess) return Status::Ok();
  const RuntimeApi& api = *GetRuntime().value();
  // The error that a launch left behind must not be found by TensorFlow.
  api.GetLastError();
  return Status(cuda_error == kErrorMemoryAllocation
                    ? StatusCode::kResourceExhausted
                    : StatusCode::kInternal,
                StrCat(what, ": ", api.GetErrorString(cuda_error),
                       " (CUDA error ", cuda_error, ")"));
}

}  // namespace ring_keras::cuda
