// libcudart: memory and copies.
#include "tests/stand_in/device/memory.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/stream.h"

using namespace ring_keras::stand_in;

namespace {

int AllocateInto(MemoryKind kind, void** memory, size_t size) {
  if (DeviceCount() == 0) return Returned(kCudaNoDevice);
  if (memory == nullptr) return Returned(kCudaInvalidValue);
  MakeContext();
  *memory = nullptr;
  if (size == 0) return kCudaSuccess;
  *memory = Allocate(kind, CurrentDevice(), size);
  return Returned(*memory == nullptr ? kCudaOutOfMemory : DeviceFault());
}

bool IsDeviceMemory(const void* pointer) {
  const auto place = FindMemory(pointer);
  return place && place->kind == MemoryKind::kDevice;
}

// The host side of a copy may be reused when the call returns, unless it is
// pinned.
bool IsPageable(const void* pointer) { return !FindMemory(pointer); }

}  // namespace

int cudaMalloc(void** memory, size_t size) {
  return AllocateInto(MemoryKind::kDevice, memory, size);
}

int cudaFree(void* memory) {
  if (memory == nullptr) return kCudaSuccess;
  const auto place = FindMemory(memory);
  if (!place || place->kind != MemoryKind::kDevice) {
    return Returned(kCudaInvalidValue);
  }
  SynchronizeDevice(place->device);
  Free(MemoryKind::kDevice, memory);
  return Returned(DeviceFault());
}

int cudaMallocAsync(void** memory, size_t size, void* stream) {
  if (FindStream(stream) == nullptr) return Returned(kCudaInvalidHandle);
  return AllocateInto(MemoryKind::kDevice, memory, size);
}

int cudaFreeAsync(void* memory, void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (memory == nullptr) return kCudaSuccess;
  if (!IsDeviceMemory(memory)) return Returned(kCudaInvalidValue);
  found->Enqueue([memory] { Free(MemoryKind::kDevice, memory); });
  return Returned(DeviceFault());
}

int cudaMallocHost(void** memory, size_t size) {
  return AllocateInto(MemoryKind::kPinnedHost, memory, size);
}

int cudaHostAlloc(void** memory, size_t size, unsigned /*flags*/) {
  return cudaMallocHost(memory, size);
}

int cudaFreeHost(void* memory) {
  if (memory == nullptr) return kCudaSuccess;
  const auto place = FindMemory(memory);
  if (!place || place->kind != MemoryKind::kPinnedHost) {
    return Returned(kCudaInvalidValue);
  }
  SynchronizeDevice(place->device);
  Free(MemoryKind::kPinnedHost, memory);
  return Returned(DeviceFault());
}

int cudaMemGetInfo(size_t* free, size_t* total) {
  *total = size_t{8} << 30;
  *free = *total;
  return kCudaSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind,
                    void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (kind < kCudaHostToHost || kind > kCudaCopyDefault) {
    return Returned(kCudaInvalidValue);
  }
  const bool to_device =
      kind == kCudaCopyDefault
          ? IsDeviceMemory(to)
          : kind == kCudaHostToDevice || kind == kCudaDeviceToDevice;
  const bool from_device =
      kind == kCudaCopyDefault
          ? IsDeviceMemory(from)
          : kind == kCudaDeviceToHost || kind == kCudaDeviceToDevice;
  if (size == 0) return Returned(DeviceFault());
  // Our kind says device: it must be.
  if (to_device != IsDeviceMemory(to) || from_device != IsDeviceMemory(from)) {
    return Returned(kCudaInvalidValue);
  }
  std::shared_ptr<std::string> staged;
  if (!from_device && IsPageable(from)) {
    staged =
        std::make_shared<std::string>(static_cast<const char*>(from), size);
  }
  found->Enqueue([=] {
    if (to_device) CheckAccess(to, size, "cudaMemcpyAsync");
    if (from_device) CheckAccess(from, size, "cudaMemcpyAsync");
    std::memmove(to, staged ? staged->data() : from, size);
  });
  if (!to_device && IsPageable(to)) found->Mark()->Wait();
  return Returned(DeviceFault());
}

int cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  const int error = cudaMemcpyAsync(to, from, size, kind, nullptr);
  return error != kCudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

int cudaMemsetAsync(void* memory, int value, size_t size, void* stream) {
  const auto found = FindStream(stream);
  if (found == nullptr) return Returned(kCudaInvalidHandle);
  if (size == 0) return Returned(DeviceFault());
  if (!IsDeviceMemory(memory)) return Returned(kCudaInvalidValue);
  found->Enqueue([=] {
    CheckAccess(memory, size, "cudaMemsetAsync");
    std::memset(memory, value, size);
  });
  return Returned(DeviceFault());
}

int cudaMemset(void* memory, int value, size_t size) {
  return cudaMemsetAsync(memory, value, size, nullptr);
}

int cudaPointerGetAttributes(PointerAttributes* attributes,
                             const void* pointer) {
  const auto place = FindMemory(pointer);
  *attributes = {};
  if (!place) {
    attributes->device = -1;
    return kCudaSuccess;
  }
  const bool on_device = place->kind == MemoryKind::kDevice;
  attributes->type = on_device ? 2 : 1;
  attributes->device = place->device;
  attributes->device_pointer = const_cast<void*>(pointer);
  attributes->host_pointer = on_device ? nullptr : const_cast<void*>(pointer);
  return kCudaSuccess;
}
