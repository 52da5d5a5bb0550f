#include "tf_ops/cuda/library_paths.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <sstream>
#include <vector>

namespace ring_keras::cuda {
namespace {

struct SearchPath {
  std::mutex mutex;
  std::string directories;
  std::string package_folder;
};

SearchPath& GetSearchPath() {
  static SearchPath* path = new SearchPath;  // Threads may outlive main().
  return *path;
}

std::vector<std::string> ChosenDirectories() {
  SearchPath& path = GetSearchPath();
  std::lock_guard<std::mutex> lock(path.mutex);
  std::istringstream entries(path.directories);
  std::vector<std::string> directories;
  for (std::string entry; std::getline(entries, entry, ':');) {
    if (!entry.empty()) directories.push_back(entry);
  }
  return directories;
}

// The `lib` folders of NVIDIA's pip packages.
std::vector<std::string> PipDirectories() {
  std::vector<std::string> folders;
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&PipDirectories), &self) != 0) {
    const std::string path = self.dli_fname;
    folders.push_back(path.substr(0, path.rfind('/')) + "/..");
  }
  SearchPath& path = GetSearchPath();
  std::lock_guard<std::mutex> lock(path.mutex);
  if (!path.package_folder.empty()) folders.push_back(path.package_folder);
  std::vector<std::string> directories;
  for (const std::string& folder : folders) {
    for (const char* package : {"cuda_runtime", "cuda_nvrtc", "nccl", "cu13"}) {
      directories.push_back(folder + "/nvidia/" + package + "/lib");
    }
  }
  return directories;
}

// Opens one of the library's files in the directories, the loader's if empty.
class Opener {
 public:
  explicit Opener(const LibraryName& library) : library_(library) {}

  void* Loaded() {
    for (const char* soname : library_.sonames) {
      if (void* handle = dlopen(soname, RTLD_NOW | RTLD_NOLOAD)) return handle;
    }
    return nullptr;
  }

  void* In(const std::vector<std::string>& directories) {
    for (const std::string& directory : directories) {
      for (const char* soname : library_.sonames) {
        const std::string path = directory + "/" + soname;
        if (access(path.c_str(), F_OK) != 0) continue;
        if (void* handle = Open(path)) return handle;
      }
    }
    return nullptr;
  }

  void* ByLoader() {
    for (const char* soname : library_.sonames) {
      if (void* handle = Open(soname)) return handle;
    }
    return nullptr;
  }

  const std::string& failures() const { return failures_; }

 private:
  void* Open(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) failures_ += StrCat("\n  ", dlerror());
    return handle;
  }

  const LibraryName& library_;
  std::string failures_;
};

std::string Remedy(const LibraryName& library) {
  const std::string elsewhere =
      " If it is installed elsewhere, name its folder in "
      "RING_KERAS_CUDA_LIBRARY_PATH.";
  if (library.pip_package == nullptr) {
    return "It comes with NVIDIA's driver: install that, and give the "
           "container "
           "access to it if this is one." +
           elsewhere;
  }
  return StrCat("Run `pip install ring-keras[cuda]`, which installs ",
                library.pip_package, ".", elsewhere);
}

}  // namespace

void SetLibraryPath(const std::string& directories) {
  SearchPath& path = GetSearchPath();
  std::lock_guard<std::mutex> lock(path.mutex);
  path.directories = directories;
}

void SetPackageFolder(const std::string& folder) {
  SearchPath& path = GetSearchPath();
  std::lock_guard<std::mutex> lock(path.mutex);
  path.package_folder = folder;
}

StatusOr<void*> OpenLibrary(const LibraryName& library) {
  Opener opener(library);
  void* handle = opener.In(ChosenDirectories());
  if (handle == nullptr) handle = opener.Loaded();
  if (handle == nullptr) handle = opener.In(PipDirectories());
  if (handle == nullptr) handle = opener.ByLoader();
  if (handle != nullptr) return handle;
  std::string sonames;
  for (const char* soname : library.sonames) {
    sonames += StrCat(sonames.empty() ? "" : " or ", soname);
  }
  return Status(
      StatusCode::kInternal, ErrorCode::kNoLibrary,
      StrCat("expected ", library.title, " (", sonames,
             ") for tensors on a GPU, but it could not be opened. ",
             Remedy(library), " The loader said:", opener.failures()));
}

void* Symbols::FindIfAny(const char* name) { return dlsym(handle_, name); }

void* Symbols::Find(const char* name) {
  void* symbol = FindIfAny(name);
  if (symbol == nullptr && status_.ok()) {
    status_ =
        Status(StatusCode::kInternal, ErrorCode::kNoLibrary,
               StrCat("expected the function ", name, " in ", library_.title,
                      ", but the one that was opened has none: it is too "
                      "old, or not NVIDIA's. ",
                      Remedy(library_)));
  }
  return symbol;
}

}  // namespace ring_keras::cuda
