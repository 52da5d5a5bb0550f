#include "tf_ops/cuda/device_code.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tf_ops/cuda/nvrtc_api.h"
#include "tf_ops/cuda/version.h"

namespace ring_keras::cuda {
namespace {

// A program of NVRTC's, destroyed with this.
class Program {
 public:
  explicit Program(const NvrtcApi& api) : api_(api) {}
  ~Program() {
    if (handle_ != nullptr) api_.DestroyProgram(&handle_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Status Create(const char* source) {
    return NvrtcStatus(
        api_.CreateProgram(&handle_, source, "ring_keras_device_code.cu", 0,
                           nullptr, nullptr),
        "giving NVRTC the device code");
  }

  // No product is fused with a sum: results are those of the host.
  Status Compile(const std::string& architecture) {
    const std::string target = "--gpu-architecture=" + architecture;
    const char* const options[] = {target.c_str(), "--std=c++17",
                                   "--fmad=false"};
    const Status status =
        NvrtcStatus(api_.CompileProgram(handle_, std::size(options), options),
                    "compiling the device code");
    if (status.ok()) return status;
    StatusOr<std::string> log =
        Read(api_.GetProgramLogSize, api_.GetProgramLog);
    if (log.ok())
      log.value().erase(log.value().find_last_not_of({" \n", 3}) + 1);
    return Status(status.code(),
                  StrCat(status.message(), " for ", architecture, ": ",
                         log.ok() ? log.value() : log.status().message()));
  }

  StatusOr<std::string> Read(int (*get_size)(ProgramHandle, size_t*),
                             int (*get)(ProgramHandle, char*)) {
    size_t nbytes = 0;
    RING_KERAS_RETURN_IF_ERROR(
        NvrtcStatus(get_size(handle_, &nbytes), "asking NVRTC for its output"));
    std::string output(nbytes, '\0');
    RING_KERAS_RETURN_IF_ERROR(NvrtcStatus(get(handle_, output.data()),
                                           "asking NVRTC for its output"));
    return output;
  }

 private:
  const NvrtcApi& api_;
  ProgramHandle handle_ = nullptr;
};

}  // namespace

StatusOr<std::string> CompileDeviceCode(const std::string& architecture) {
  StatusOr<const NvrtcApi*> nvrtc = GetNvrtc();
  if (!nvrtc.ok()) return nvrtc.status();
  const NvrtcApi& api = *nvrtc.value();
  Program program(api);
  RING_KERAS_RETURN_IF_ERROR(program.Create(kDeviceCode));
  RING_KERAS_RETURN_IF_ERROR(program.Compile(architecture));
  return architecture.starts_with("sm_")
             ? program.Read(api.GetCUBINSize, api.GetCUBIN)
             : program.Read(api.GetPTXSize, api.GetPTX);
}

StatusOr<std::string> ArchitectureFor(int capability) {
  StatusOr<const NvrtcApi*> nvrtc = GetNvrtc();
  if (!nvrtc.ok()) return nvrtc.status();
  const NvrtcApi& api = *nvrtc.value();
  int count = 0;
  RING_KERAS_RETURN_IF_ERROR(
      NvrtcStatus(api.GetNumSupportedArchs(&count),
                  "asking NVRTC for the architectures that it knows"));
  std::vector<int> known(count);
  RING_KERAS_RETURN_IF_ERROR(
      NvrtcStatus(api.GetSupportedArchs(known.data()),
                  "asking NVRTC for the architectures that it knows"));
  int newest = 0;
  for (const int architecture : known) {
    if (architecture <= capability) newest = std::max(newest, architecture);
  }
  if (newest == capability) return StrCat("sm_", capability);
  if (newest > 0) return StrCat("compute_", newest);
  Version version;
  api.Version(&version.major, &version.minor);
  return Status(
      StatusCode::kInternal, ErrorCode::kNoLibrary,
      StrCat("expected an NVRTC that compiles for this GPU, of compute "
             "capability ",
             capability / 10, ".", capability % 10, ", but version ",
             version.major, ".", version.minor,
             " knows only newer ones. "
             "Install an older one, such as nvidia-cuda-nvrtc-cu12."));
}

}  // namespace ring_keras::cuda
