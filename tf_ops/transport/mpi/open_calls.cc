// Finds an MPI, and which of the three binary interfaces it has.
#include <dlfcn.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tf_ops/transport/mpi/calls.h"
#include "tf_ops/transport/mpi/calls_of.h"

namespace ring_keras::mpi {
namespace {

constexpr char kStandardName[] = "libmpi_abi.so.1";
constexpr char kMpichName[] = "libmpi.so.12";
constexpr char kOpenMpiName[] = "libmpi.so.40";
// What a process has loaded is taken before what it has not.
constexpr const char* kNames[] = {kMpichName, kOpenMpiName, kStandardName};
constexpr char kStandardStem[] = "libmpi_abi";

// Plugins of some MPIs take their symbols from the process.
constexpr int kMode = RTLD_NOW | RTLD_GLOBAL;

// Of MPI 5.0's standard ABI.
const Constants<void*>& StandardConstants() {
  static const Constants<void*> constants = {reinterpret_cast<void*>(0x101),
                                             reinterpret_cast<void*>(0x102),
                                             reinterpret_cast<void*>(0x247),
                                             reinterpret_cast<void*>(0x143),
                                             -1,
                                             4096};
  return constants;
}

// Of MPICH's, which Intel MPI, MVAPICH and Cray MPICH share.
constexpr Constants<int> kMpichConstants = {0x44000000, 0x44000001, 0x4c00010d,
                                            0x54000001, -2,         3};

Status NoMpi(const std::string& why) {
  return Status(
      StatusCode::kInternal, ErrorCode::kNoMpi,
      StrCat("RING_KERAS_TRANSPORT=mpi needs an MPI: ", why,
             ". Install Open MPI, MPICH or Intel MPI, the one whose mpirun or "
             "srun starts the ranks, for example by `pip install mpich`, or "
             "say in RING_KERAS_MPI_LIBRARY where its libmpi is."));
}

void* LoadedLibrary() {
  for (const char* name : kNames) {
    if (void* found = dlopen(name, kMode | RTLD_NOLOAD)) return found;
  }
  return nullptr;
}

StatusOr<void*> OpenLibrary(const std::string& library,
                            const std::string& folder) {
  void* const loaded = LoadedLibrary();
  if (!library.empty()) {
    void* const found = dlopen(library.c_str(), kMode);
    if (found == nullptr) return NoMpi(dlerror());
    if (loaded != nullptr && found != loaded) {
      return NoMpi(StrCat("RING_KERAS_MPI_LIBRARY is ", library,
                          ", and this process has loaded another"));
    }
    return found;
  }
  if (loaded != nullptr) return loaded;
  for (const std::string& prefix : {folder + "/", std::string()}) {
    for (const char* name : kNames) {
      if (void* found = dlopen((prefix + name).c_str(), kMode)) return found;
    }
  }
  return NoMpi(StrCat("there is no ", kMpichName, ", ", kOpenMpiName, " or ",
                      kStandardName, " in ", folder,
                      " or where the system looks"));
}

// The file that a library's function is in.
std::string FileOf(void* library) {
  Dl_info info = {};
  void* const function = dlsym(library, "MPI_Init_thread");
  if (function == nullptr || dladdr(function, &info) == 0) return "";
  return info.dli_fname == nullptr ? "" : info.dli_fname;
}

template <typename Handle>
StatusOr<std::unique_ptr<Calls>> Make(void* library,
                                      const Constants<Handle>& constants) {
  auto calls = std::make_unique<CallsOf<Handle>>(library, constants);
  if (!calls->missing().empty()) {
    return NoMpi(StrCat(FileOf(library), " has no ", calls->missing()));
  }
  return std::unique_ptr<Calls>(std::move(calls));
}

}  // namespace

StatusOr<std::unique_ptr<Calls>> OpenCalls(const std::string& library,
                                           const std::string& folder) {
  StatusOr<void*> opened = OpenLibrary(library, folder);
  RING_KERAS_RETURN_IF_ERROR(opened.status());
  void* const handle = opened.value();
  // An MPI may have a library for its own interface and one for the standard's,
  // whose functions have the same names: the file's name tells them apart.
  if (FileOf(handle).find(kStandardStem) != std::string::npos) {
    return Make(handle, StandardConstants());
  }
  if (void* world = dlsym(handle, "ompi_mpi_comm_world")) {
    return Make(handle, Constants<void*>{
                            world, dlsym(handle, "ompi_mpi_comm_self"),
                            dlsym(handle, "ompi_mpi_byte"),
                            dlsym(handle, "ompi_mpi_errors_return"), -1, 3});
  }
  auto calls = Make(handle, kMpichConstants);
  RING_KERAS_RETURN_IF_ERROR(calls.status());
  const std::string version = calls.value()->version();
  for (const char* kin : {"MPICH", "Intel", "MVAPICH", "CRAY MPICH"}) {
    if (version.find(kin) != std::string::npos) return calls;
  }
  return NoMpi(StrCat(FileOf(handle), " (", version, ") is none of them"));
}

}  // namespace ring_keras::mpi
