#include "tf_ops/cuda/driver_api.h"

#include "tf_ops/cuda/library_paths.h"

namespace ring_keras::cuda {
namespace {

StatusOr<const DriverApi*> LoadDriver() {
  StatusOr<void*> handle = OpenLibrary(kDriverLibrary);
  if (!handle.ok()) return handle.status();
  static DriverApi api;
  Symbols symbols(kDriverLibrary, handle.value());
  symbols.Find("cuGetErrorString", &api.GetErrorString);
  symbols.Find("cuModuleLoadData", &api.ModuleLoadData);
  symbols.Find("cuModuleGetFunction", &api.ModuleGetFunction);
  symbols.FindIfAny("cuFuncLoad", &api.FuncLoad);
  symbols.Find("cuLaunchKernel", &api.LaunchKernel);
  RING_KERAS_RETURN_IF_ERROR(symbols.status());
  return &api;
}

}  // namespace

StatusOr<const DriverApi*> GetDriver() {
  static const StatusOr<const DriverApi*> driver = LoadDriver();
  return driver;
}

Status DriverStatus(int error, const char* what) {
  if (error == kSuccess) return Status::Ok();
  const char* text = nullptr;
  GetDriver().value()->GetErrorString(error, &text);
  return Status(error == kErrorMemoryAllocation ? StatusCode::kResourceExhausted
                                                : StatusCode::kInternal,
                StrCat(what, ": ", text == nullptr ? "unknown error" : text,
                       " (CUDA driver error ", error, ")"));
}

}  // namespace ring_keras::cuda
