// Where NVIDIA's libraries are, and opening them when they are first needed:
// the core is built without them and works on machines that have none.
#ifndef RING_KERAS_CUDA_LIBRARY_PATHS_H_
#define RING_KERAS_CUDA_LIBRARY_PATHS_H_

#include <string>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/library_names.h"

namespace ring_keras::cuda {

// Directories to look in before all others, separated by colons; empty for
// none. Has an effect on libraries that were not opened yet.
RING_KERAS_EXPORT void SetLibraryPath(const std::string& directories);

// The folder of the Python packages, where NVIDIA's pip packages are too.
// Needed only where it is not the folder above this library: when ring_keras is
// installed as a link to its sources.
RING_KERAS_EXPORT void SetPackageFolder(const std::string& folder);

// Opens the library; it stays open until the process ends. In this order: from
// the directories of SetLibraryPath; the copy that the process has already
// loaded, which is TensorFlow's or another framework's, because two copies of
// one library in a process have two states; from the pip packages beside this
// one; from wherever the loader finds it.
//
// Error: Internal, which says what was tried and what to install.
RING_KERAS_EXPORT StatusOr<void*> OpenLibrary(const LibraryName& library);

// Looks up functions of an open library by name, and keeps the first failure.
class Symbols {
 public:
  Symbols(const LibraryName& library, void* handle)
      : library_(library), handle_(handle) {}

  template <typename Function>
  void Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(Find(name));
  }

  // The same for what may be missing: null then, and no failure.
  template <typename Function>
  void FindIfAny(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(FindIfAny(name));
  }

  // Internal: the library is older than the function.
  const Status& status() const { return status_; }

 private:
  RING_KERAS_EXPORT void* Find(const char* name);
  RING_KERAS_EXPORT void* FindIfAny(const char* name);

  const LibraryName& library_;
  void* const handle_;
  Status status_;
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_LIBRARY_PATHS_H_
