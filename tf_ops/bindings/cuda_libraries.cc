#include "tf_ops/bindings/cuda_libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/cuda/library_paths.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// Title, version, path, and why there is none.
using Found = std::tuple<std::string, std::string, std::string, std::string>;

// CUDA counts 12.5 as 12050.
std::string CudaVersion(void* function) {
  int number = 0;
  if (reinterpret_cast<int (*)(int*)>(function)(&number) != 0) return "";
  return StrCat(number / 1000, ".", number % 1000 / 10);
}

// NCCL counts 2.27.7 as 22707.
std::string NcclVersion(void* function) {
  int number = 0;
  if (reinterpret_cast<int (*)(int*)>(function)(&number) != 0) return "";
  return StrCat(number / 10000, ".", number % 10000 / 100, ".", number % 100);
}

std::string NvrtcVersion(void* function) {
  int major = 0;
  int minor = 0;
  if (reinterpret_cast<int (*)(int*, int*)>(function)(&major, &minor) != 0) {
    return "";
  }
  return StrCat(major, ".", minor);
}

struct Library {
  const char* title;
  const cuda::LibraryName& name;
  const char* version_symbol;
  std::string (*version)(void* function);
};

const Library kLibraries[] = {
    {"CUDA driver", cuda::kDriverLibrary, "cuDriverGetVersion", CudaVersion},
    {"CUDA runtime", cuda::kRuntimeLibrary, "cudaRuntimeGetVersion",
     CudaVersion},
    {"NVRTC", cuda::kNvrtcLibrary, "nvrtcVersion", NvrtcVersion},
    {"NCCL", cuda::kNcclLibrary, "ncclGetVersion", NcclVersion},
};

Found Look(const Library& library) {
  const std::string title = library.title;
  const StatusOr<void*> handle = cuda::OpenLibrary(library.name);
  if (!handle.ok()) return {title, "", "", handle.status().message()};
  link_map* map = nullptr;
  std::string path;
  if (dlinfo(handle.value(), RTLD_DI_LINKMAP, &map) == 0) path = map->l_name;
  void* version = dlsym(handle.value(), library.version_symbol);
  return {title, version == nullptr ? "" : library.version(version), path, ""};
}

std::vector<Found> CudaLibraries(const std::string& library_path) {
  cuda::SetLibraryPath(library_path);
  std::vector<Found> found;
  for (const Library& library : kLibraries) found.push_back(Look(library));
  return found;
}

}  // namespace

void BindCudaLibraries(py::module_& module) {
  module.def("cuda_libraries", &CudaLibraries, py::arg("library_path") = "");
}

}  // namespace ring_keras
