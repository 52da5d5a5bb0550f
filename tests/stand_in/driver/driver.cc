// libcuda: modules and launches.
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/errors.h"
#include "tests/stand_in/device/log.h"
#include "tests/stand_in/device/registry.h"
#include "tests/stand_in/device/stream.h"
#include "tests/stand_in/driver/image.h"
#include "tests/stand_in/driver/kernels.h"

using namespace ring_keras::stand_in;

namespace {

struct Function {
  HostKernel kernel;
  int device;
};

struct Module {
  int device;
  std::vector<void*> functions;
};

Registry<Module>& Modules() {
  static auto* modules = new Registry<Module>;
  return *modules;
}

Registry<Function>& Functions() {
  static auto* functions = new Registry<Function>;
  return *functions;
}

}  // namespace

int cuInit(unsigned /*flags*/) {
  return DeviceCount() == 0 ? kCudaNoDevice : kCudaSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 12050;
  return kCudaSuccess;
}

int cuGetErrorName(int error, const char** name) {
  *name = DescribeError(error).name;
  return kCudaSuccess;
}

int cuGetErrorString(int error, const char** text) {
  *text = DescribeError(error).text;
  return kCudaSuccess;
}

int cuModuleLoadData(void** module, const void* image) {
  if (!HasContext()) return kCudaInvalidContext;
  if (std::strncmp(static_cast<const char*>(image), kImageMark,
                   std::strlen(kImageMark)) != 0) {
    return kCudaInvalidImage;
  }
  *module =
      Modules().Add(std::make_shared<Module>(Module{CurrentDevice(), {}}));
  return kCudaSuccess;
}

int cuModuleUnload(void* module) {
  const auto found = Modules().Remove(module);
  if (found == nullptr) return kCudaInvalidHandle;
  for (void* function : found->functions) Functions().Remove(function);
  return kCudaSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const auto found = Modules().Find(module);
  if (found == nullptr) return kCudaInvalidHandle;
  for (const HostKernel& kernel : HostKernels()) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = Functions().Add(
        std::make_shared<Function>(Function{kernel, found->device}));
    found->functions.push_back(*function);
    return kCudaSuccess;
  }
  return kCudaNotFound;
}

// The device code uses one dimension and one parameter, and no shared memory.
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream,
                   void** parameters, void** extra) {
  if (!HasContext()) return kCudaInvalidContext;
  const auto found = Functions().Find(function);
  const auto found_stream = FindStream(stream);
  if (found == nullptr || found_stream == nullptr ||
      found_stream->device() != found->device ||
      CurrentDevice() != found->device) {
    return kCudaInvalidHandle;
  }
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 ||
      block_x > 1024 || block_y != 1 || block_z != 1 || shared_bytes != 0 ||
      extra != nullptr) {
    return kCudaInvalidValue;
  }
  Log(std::string("kernel ") + found->kernel.name);
  // Parameters are copied when a kernel is launched, not when it runs.
  const auto* argument = static_cast<const char*>(parameters[0]);
  auto copy = std::make_shared<std::vector<char>>(
      argument, argument + found->kernel.argument_nbytes);
  found_stream->Enqueue([kernel = found->kernel, grid_x, block_x, copy] {
    kernel.run(copy->data(), grid_x, block_x);
  });
  return DeviceFault();
}
