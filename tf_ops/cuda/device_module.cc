#include "tf_ops/cuda/device_module.h"

#include <array>
#include <map>
#include <mutex>
#include <string>

#include "tf_ops/cuda/device_code.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::cuda {
namespace {

constexpr const char* kNames[] = {
#define RING_KERAS_NAME(constant, name, ...) #name,
    RING_KERAS_KERNELS(RING_KERAS_NAME)
#undef RING_KERAS_NAME
};

using Functions = std::array<FunctionHandle, std::size(kNames)>;

StatusOr<int> CapabilityOf(const RuntimeApi& runtime, int device) {
  int major = 0;
  int minor = 0;
  RING_KERAS_RETURN_IF_ERROR(ToStatus(
      runtime.DeviceGetAttribute(&major, kAttributeCapabilityMajor, device),
      "asking for a device's compute capability"));
  RING_KERAS_RETURN_IF_ERROR(ToStatus(
      runtime.DeviceGetAttribute(&minor, kAttributeCapabilityMinor, device),
      "asking for a device's compute capability"));
  return major * 10 + minor;
}

StatusOr<Functions> Load(const DriverApi& driver, const std::string& binary) {
  ModuleHandle module = nullptr;
  const Status status = DriverStatus(
      driver.ModuleLoadData(&module, binary.data()), "loading the device code");
  if (!status.ok()) {
    return Status(status.code(),
                  StrCat(status.message(),
                         ". A driver older than NVRTC cannot load what that "
                         "compiled: update the driver, or install an NVRTC of "
                         "the driver's CUDA version or an older one."));
  }
  Functions functions;
  for (size_t i = 0; i < functions.size(); ++i) {
    RING_KERAS_RETURN_IF_ERROR(DriverStatus(
        driver.ModuleGetFunction(&functions[i], module, kNames[i]), kNames[i]));
    // Otherwise the driver may load it at its first launch, and wait then until
    // the device is idle: for a collective, and so for a peer that waits for
    // us.
    if (driver.FuncLoad != nullptr) {
      RING_KERAS_RETURN_IF_ERROR(
          DriverStatus(driver.FuncLoad(functions[i]), kNames[i]));
    }
  }
  return functions;
}

// All devices of the process. Modules stay loaded until it ends.
class Modules {
 public:
  StatusOr<FunctionHandle> Find(int device, Kernel kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = functions_.find(device);
    if (found == functions_.end()) {
      found = functions_.emplace(device, Prepare(device)).first;
    }
    const StatusOr<Functions>& functions = found->second;
    if (!functions.ok()) return functions.status();
    return functions.value()[static_cast<int>(kernel)];
  }

 private:
  // Requires that the device is current.
  StatusOr<Functions> Prepare(int device) {
    StatusOr<const DriverApi*> driver = GetDriver();
    if (!driver.ok()) return driver.status();
    StatusOr<int> capability = CapabilityOf(*GetRuntime().value(), device);
    if (!capability.ok()) return capability.status();
    auto binary = binaries_.find(capability.value());
    if (binary == binaries_.end()) {
      StatusOr<std::string> architecture = ArchitectureFor(capability.value());
      if (!architecture.ok()) return architecture.status();
      binary = binaries_
                   .emplace(capability.value(),
                            CompileDeviceCode(architecture.value()))
                   .first;
    }
    if (!binary->second.ok()) return binary->second.status();
    return Load(*driver.value(), binary->second.value());
  }

  std::mutex mutex_;
  std::map<int, StatusOr<std::string>> binaries_;  // By compute capability.
  std::map<int, StatusOr<Functions>> functions_;   // By device.
};

}  // namespace

StatusOr<FunctionHandle> GetKernel(int device, Kernel kernel) {
  static auto* modules = new Modules;  // Outlives every thread that launches.
  StatusOr<const RuntimeApi*> runtime = GetRuntime();
  if (!runtime.ok()) return runtime.status();
  RING_KERAS_RETURN_IF_ERROR(
      ToStatus(runtime.value()->SetDevice(device), "making a device current"));
  return modules->Find(device, kernel);
}

}  // namespace ring_keras::cuda
