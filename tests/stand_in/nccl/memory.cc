// libnccl: memory, and buffers registered with communicators.
#include "tests/stand_in/device/memory.h"

#include <cstdio>
#include <cstdlib>

#include "tests/stand_in/cuda_abi.h"
#include "tests/stand_in/device/device.h"
#include "tests/stand_in/nccl/communicator.h"
#include "tests/stand_in/nccl/communicator_use.h"
#include "tests/stand_in/nccl_abi.h"

using namespace ring_keras::stand_in;

int ncclMemAlloc(void** memory, size_t size) {
  if (memory == nullptr || size == 0) return kNcclInvalidArgument;
  if (DeviceCount() == 0) return kNcclUnhandledCudaError;
  MakeContext();
  *memory = Allocate(MemoryKind::kDevice, CurrentDevice(), size);
  return *memory == nullptr ? kNcclUnhandledCudaError : kNcclSuccess;
}

int ncclMemFree(void* memory) {
  if (memory == nullptr) return kNcclSuccess;
  for (const auto& communicator : AllCommunicators()) {
    if (!communicator->IsRegistered(memory)) continue;
    std::fprintf(stderr,
                 "stand-in NCCL: ncclMemFree of a buffer that is registered "
                 "with a communicator\n");
    std::abort();
  }
  return Free(MemoryKind::kDevice, memory) ? kNcclSuccess
                                           : kNcclInvalidArgument;
}

int ncclCommRegister(ncclComm* comm, void* buffer, size_t size, void** handle) {
  CommunicatorUse use(comm, "ncclCommRegister");
  if (use.error() != kNcclSuccess) return use.error();
  if (handle == nullptr || buffer == nullptr) return kNcclInvalidArgument;
  CheckAccess(buffer, size, "ncclCommRegister");
  *handle = use->Register(buffer);
  return kNcclSuccess;
}

int ncclCommDeregister(ncclComm* comm, void* handle) {
  CommunicatorUse use(comm, "ncclCommDeregister");
  if (use.error() != kNcclSuccess) return use.error();
  return use->Deregister(handle) ? kNcclSuccess : kNcclInvalidArgument;
}
