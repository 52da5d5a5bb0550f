// libcudart: devices and errors.
#include "tests/stand_in/device/device.h"

#include <cstdio>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/errors.h"
#include "tests/stand_in/device/stream.h"

using namespace ring_keras::stand_in;

namespace {

constexpr int kVersion = 12050;

enum Attribute {
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};

}  // namespace

int cudaGetDeviceCount(int* count) {
  *count = DeviceCount();
  return Returned(*count == 0 ? kCudaNoDevice : kCudaSuccess);
}

int cudaSetDevice(int device) { return Returned(SetCurrentDevice(device)); }

int cudaGetDevice(int* device) {
  if (DeviceCount() == 0) return Returned(kCudaNoDevice);
  *device = CurrentDevice();
  return kCudaSuccess;
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= DeviceCount()) {
    return Returned(kCudaInvalidDevice);
  }
  switch (attribute) {
    case kCapabilityMajor:
      *value = 9;
      return kCudaSuccess;
    case kCapabilityMinor:
      *value = 0;
      return kCudaSuccess;
    default:
      return Returned(kCudaInvalidValue);
  }
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kCudaSuccess;
}

int cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (device < 0 || device >= DeviceCount()) {
    return Returned(kCudaInvalidDevice);
  }
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0",
                PhysicalDevice(device) + 1);
  return kCudaSuccess;
}

int cudaDeviceSynchronize() {
  MakeContext();
  SynchronizeDevice(CurrentDevice());
  return Returned(DeviceFault());
}

int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kCudaSuccess;
}

int cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return kCudaSuccess;
}

int cudaGetLastError() { return LastError(true); }

int cudaPeekAtLastError() { return LastError(false); }

const char* cudaGetErrorName(int error) { return DescribeError(error).name; }

const char* cudaGetErrorString(int error) { return DescribeError(error).text; }
