#include "tf_ops/cuda/nvrtc_api.h"

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::cuda {
namespace {

constexpr const char* kSonames[] = {"libnvrtc.so.12", "libnvrtc.so.13"};
constexpr LibraryName kLibrary = {"NVRTC, the CUDA run-time compiler", kSonames,
                                  "nvidia-cuda-nvrtc-cu12"};

StatusOr<const NvrtcApi*> Load() {
  StatusOr<void*> handle = OpenLibrary(kLibrary);
  if (!handle.ok()) return handle.status();
  static NvrtcApi api;
  Symbols symbols(kLibrary, handle.value());
  symbols.Find("nvrtcGetErrorString", &api.GetErrorString);
  symbols.Find("nvrtcVersion", &api.Version);
  symbols.Find("nvrtcGetNumSupportedArchs", &api.GetNumSupportedArchs);
  symbols.Find("nvrtcGetSupportedArchs", &api.GetSupportedArchs);
  symbols.Find("nvrtcCreateProgram", &api.CreateProgram);
  symbols.Find("nvrtcDestroyProgram", &api.DestroyProgram);
  symbols.Find("nvrtcCompileProgram", &api.CompileProgram);
  symbols.Find("nvrtcGetProgramLogSize", &api.GetProgramLogSize);
  symbols.Find("nvrtcGetProgramLog", &api.GetProgramLog);
  symbols.Find("nvrtcGetCUBINSize", &api.GetCUBINSize);
  symbols.Find("nvrtcGetCUBIN", &api.GetCUBIN);
  symbols.Find("nvrtcGetPTXSize", &api.GetPTXSize);
  symbols.Find("nvrtcGetPTX", &api.GetPTX);
  RING_KERAS_RETURN_IF_ERROR(symbols.status());
  Version version;
  if (const int error = api.Version(&version.major, &version.minor);
      error != 0) {
    return Status(
        StatusCode::kInternal,
        StrCat("asking NVRTC for its version: ", api.GetErrorString(error)));
  }
  RING_KERAS_RETURN_IF_ERROR(CheckVersion(kLibrary, version, Version{12, 0}));
  return &api;
}

}  // namespace

StatusOr<const NvrtcApi*> GetNvrtc() {
  static const StatusOr<const NvrtcApi*> nvrtc = Load();
  return nvrtc;
}

Status NvrtcStatus(int error, const char* what) {
  if (error == 0) return Status::Ok();
  return Status(StatusCode::kInternal,
                StrCat(what, ": ", GetNvrtc().value()->GetErrorString(error),
                       " (NVRTC error ", error, ")"));
}

}  // namespace ring_keras::cuda
