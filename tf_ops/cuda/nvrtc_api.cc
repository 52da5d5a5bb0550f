#include "tf_ops/cuda/nvrtc_api.h"

#include <dlfcn.h>

#include <string>

#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::cuda {
namespace {

// NVRTC opens a second library by its bare name when it compiles, and finds the
// one beside it only if it was told so when it was built, or if that is open
// already. Best effort: NVRTC names what it misses.
void OpenBuiltins(const NvrtcApi& api, Version version) {
  Dl_info nvrtc;
  if (dladdr(reinterpret_cast<void*>(api.Version), &nvrtc) == 0) return;
  const std::string path = nvrtc.dli_fname;
  const std::string builtins =
      StrCat(path.substr(0, path.rfind('/') + 1), "libnvrtc-builtins.so.",
             version.major, ".", version.minor);
  dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

StatusOr<const NvrtcApi*> LoadNvrtc() {
  StatusOr<void*> handle = OpenLibrary(kNvrtcLibrary);
  if (!handle.ok()) return handle.status();
  static NvrtcApi api;
  Symbols symbols(kNvrtcLibrary, handle.value());
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
  RING_KERAS_RETURN_IF_ERROR(
      CheckVersion(kNvrtcLibrary, version, Version{12, 0}));
  OpenBuiltins(api, version);
  return &api;
}

}  // namespace

StatusOr<const NvrtcApi*> GetNvrtc() {
  static const StatusOr<const NvrtcApi*> nvrtc = LoadNvrtc();
  return nvrtc;
}

Status NvrtcStatus(int error, const char* what) {
  if (error == 0) return Status::Ok();
  return Status(StatusCode::kInternal,
                StrCat(what, ": ", GetNvrtc().value()->GetErrorString(error),
                       " (NVRTC error ", error, ")"));
}

}  // namespace ring_keras::cuda
