// Versions of NVIDIA's libraries.
#ifndef RING_KERAS_CUDA_VERSION_H_
#define RING_KERAS_CUDA_VERSION_H_

#include <compare>

#include "tf_ops/common/status.h"
#include "tf_ops/cuda/library_paths.h"

namespace ring_keras::cuda {

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  auto operator<=>(const Version&) const = default;
};

// CUDA counts 12.5 as 12050.
constexpr Version CudaVersion(int number) {
  return {number / 1000, number % 1000 / 10};
}

// Internal: the library that was opened is older than `least`.
inline Status CheckVersion(const LibraryName& library, Version found,
                           Version least) {
  if (found >= least) return Status::Ok();
  const auto text = [](Version version) {
    return StrCat(version.major, ".", version.minor, ".", version.patch);
  };
  return Status(
      StatusCode::kInternal, ErrorCode::kNoLibrary,
      StrCat("expected ", library.title, " in version ", text(least),
             " or newer, but the one that was opened is ", text(found),
             ". Run `pip install ring-keras[cuda]`, "
             "which installs ",
             library.pip_package,
             "; if another package loaded the older one first, "
             "update that package."));
}

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_VERSION_H_
