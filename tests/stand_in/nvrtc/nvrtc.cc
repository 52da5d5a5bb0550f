// libnvrtc: takes the device code that the stand-in's driver was built from,
// and nothing else.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/registry.h"
#include "tests/stand_in/driver/image.h"

namespace ring_keras::cuda {
extern const char kDeviceCode[];  // tf_ops/cuda/device_code.h
}  // namespace ring_keras::cuda

using namespace ring_keras::stand_in;

namespace {

constexpr int kArchitectures[] = {70, 80, 90};

struct Program {
  std::string source;
  std::string log;
  std::string machine_code;
  std::string ptx;
};

Registry<Program>& Programs() {
  static auto* programs = new Registry<Program>;
  return *programs;
}

int Give(const std::string& text, bool with_end, char* to) {
  std::memcpy(to, text.c_str(), text.size() + (with_end ? 1 : 0));
  return kNvrtcSuccess;
}

bool IsKnown(const std::string& architecture) {
  const size_t digits = architecture.find('_') + 1;
  const int number = std::atoi(architecture.c_str() + digits);
  return (architecture.starts_with("sm_") ||
          architecture.starts_with("compute_")) &&
         std::find(std::begin(kArchitectures), std::end(kArchitectures),
                   number) != std::end(kArchitectures);
}

}  // namespace

int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 5;
  return kNvrtcSuccess;
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kArchitectures));
  return kNvrtcSuccess;
}

int nvrtcGetSupportedArchs(int* architectures) {
  std::copy(std::begin(kArchitectures), std::end(kArchitectures),
            architectures);
  return kNvrtcSuccess;
}

int nvrtcCreateProgram(void** program, const char* source, const char* /*name*/,
                       int header_count, const char* const* /*headers*/,
                       const char* const* /*include_names*/) {
  if (program == nullptr || source == nullptr || header_count != 0) {
    return kNvrtcInvalidInput;
  }
  auto made = std::make_shared<Program>();
  made->source = source;
  *program = Programs().Add(made);
  return kNvrtcSuccess;
}

int nvrtcDestroyProgram(void** program) {
  if (Programs().Remove(*program) == nullptr) return kNvrtcInvalidProgram;
  *program = nullptr;
  return kNvrtcSuccess;
}

int nvrtcCompileProgram(void* program, int option_count,
                        const char* const* options) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  constexpr char kTarget[] = "--gpu-architecture=";
  std::string architecture = "compute_70";
  for (int i = 0; i < option_count; ++i) {
    const std::string option = options[i];
    if (!option.starts_with("--")) return kNvrtcInvalidOption;
    if (option.starts_with(kTarget)) {
      architecture = option.substr(std::strlen(kTarget));
    }
  }
  if (!IsKnown(architecture)) {
    found->log = "unknown architecture " + architecture;
    return kNvrtcInvalidOption;
  }
  if (found->source != ring_keras::cuda::kDeviceCode) {
    found->log =
        "the stand-in compiles only the device code that it was built from";
    return kNvrtcCompilation;
  }
  found->ptx = kImageMark + architecture;
  if (architecture.starts_with("sm_")) found->machine_code = found->ptx;
  return kNvrtcSuccess;
}

int nvrtcGetCUBINSize(void* program, size_t* size) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  *size = found->machine_code.size();
  return kNvrtcSuccess;
}

int nvrtcGetCUBIN(void* program, char* image) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  return Give(found->machine_code, false, image);
}

// Sizes of texts count the end.
int nvrtcGetPTXSize(void* program, size_t* size) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  *size = found->ptx.size() + 1;
  return kNvrtcSuccess;
}

int nvrtcGetPTX(void* program, char* image) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  return Give(found->ptx, true, image);
}

int nvrtcGetProgramLogSize(void* program, size_t* size) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  *size = found->log.size() + 1;
  return kNvrtcSuccess;
}

int nvrtcGetProgramLog(void* program, char* log) {
  const auto found = Programs().Find(program);
  if (found == nullptr) return kNvrtcInvalidProgram;
  return Give(found->log, true, log);
}

const char* nvrtcGetErrorString(int result) {
  switch (result) {
    case kNvrtcSuccess:
      return "NVRTC_SUCCESS";
    case kNvrtcInvalidInput:
      return "NVRTC_ERROR_INVALID_INPUT";
    case kNvrtcInvalidProgram:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case kNvrtcInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kNvrtcCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}
