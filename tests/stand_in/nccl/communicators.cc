// libnccl: communicators.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "tests/stand_in/device/device.h"
#include "tests/stand_in/device/log.h"
#include "tests/stand_in/device/memory.h"
#include "tests/stand_in/nccl/communicator.h"
#include "tests/stand_in/nccl/communicator_use.h"
#include "tests/stand_in/nccl_abi.h"

using namespace ring_keras::stand_in;

namespace {

constexpr int kVersion = 22707;

bool IsValid(const NcclConfig* config) {
  return config == nullptr ||
         (config->magic == NcclConfig().magic &&
          config->size >= sizeof(NcclConfig) && config->version <= kVersion);
}

bool Blocks(const NcclConfig* config, bool otherwise) {
  const bool says = config != nullptr && config->blocking != kNcclUndefined;
  return says ? config->blocking != 0 : otherwise;
}

void LogConnection(const char* how, int first, int second) {
  Log(std::string(how) + ' ' + std::to_string(first) + ' ' +
      std::to_string(second));
}

// In the background, where the communicator does not block: only then is there
// a part.
int SplitNow(const std::shared_ptr<Communicator>& whole, int color, int key,
             bool blocking, ncclComm** part) {
  RegionName name;
  int rank = 0;
  int size = 0;
  const int error = whole->Split(color, key, &name, &rank, &size);
  if (error != kNcclSuccess || color == kNcclSplitNoColor) return error;
  auto made = std::make_shared<Communicator>(name, rank, size, whole->device(),
                                             blocking);
  const int connected = made->ConnectPart(*whole);
  if (connected != kNcclSuccess) return connected;
  std::atomic_ref(*part).store(AddCommunicator(made));
  return kNcclSuccess;
}

}  // namespace

int ncclGetVersion(int* version) {
  *version = kVersion;
  return kNcclSuccess;
}

int ncclGetUniqueId(NcclUniqueId* id) {
  RegionName name;
  if (!Region::Create(&name)) return kNcclSystemError;
  static_assert(sizeof(name) <= sizeof(*id));
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id, &name, sizeof(name));
  return kNcclSuccess;
}

int ncclCommInitRankConfig(ncclComm** comm, int size, NcclUniqueId id, int rank,
                           NcclConfig* config) {
  if (comm == nullptr || !IsValid(config) || size < 1 || size > kMaxRanks ||
      rank < 0 || rank >= size) {
    return kNcclInvalidArgument;
  }
  if (DeviceCount() == 0) return kNcclUnhandledCudaError;
  MakeContext();
  LogConnection("init", size, rank);
  RegionName name;
  std::memcpy(&name, &id, sizeof(name));
  auto communicator = std::make_shared<Communicator>(
      name, rank, size, CurrentDevice(), Blocks(config, true));
  *comm = AddCommunicator(communicator);
  const int result = communicator->Run(
      [self = communicator.get()] { return self->Connect(nullptr); });
  if (result != kNcclSuccess && result != kNcclInProgress) {
    RemoveCommunicator(*comm);
    *comm = nullptr;
  }
  return result;
}

int ncclCommInitRank(ncclComm** comm, int size, NcclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

int ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** part,
                  NcclConfig* config) {
  CommunicatorUse use(comm, "ncclCommSplit");
  if (use.error() != kNcclSuccess) return use.error();
  if (part == nullptr || !IsValid(config) || color < kNcclSplitNoColor) {
    return kNcclInvalidArgument;
  }
  *part = nullptr;
  LogConnection("split", color, key);
  const bool blocking = Blocks(config, use->blocking());
  return use->Run([whole = use.shared(), color, key, blocking, part] {
    return SplitNow(whole, color, key, blocking, part);
  });
}

int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  const auto communicator = FindCommunicator(comm);
  if (communicator == nullptr) return kNcclInvalidArgument;
  *error = communicator->state();
  return kNcclSuccess;
}

int ncclCommFinalize(ncclComm* comm) {
  CommunicatorUse use(comm, "ncclCommFinalize");
  if (use.error() != kNcclSuccess) return use.error();
  if (use->finalized()) return kNcclInvalidArgument;
  return use->Run([self = use.shared().get()] { return self->Finalize(); });
}

// Finalizes, if that was not done, and waits for that whatever the
// communicator's kind.
int ncclCommDestroy(ncclComm* comm) {
  if (comm == nullptr) return kNcclSuccess;
  CommunicatorUse use(comm, "ncclCommDestroy");
  if (use.error() != kNcclSuccess) return use.error();
  const int result = use->finalized() ? int{kNcclSuccess} : use->Finalize();
  RemoveCommunicator(comm);
  return result;
}

int ncclCommAbort(ncclComm* comm) {
  if (comm == nullptr) return kNcclSuccess;
  const auto communicator = RemoveCommunicator(comm);
  if (communicator == nullptr) return kNcclInvalidArgument;
  communicator->Abort();
  return kNcclSuccess;
}

int ncclCommCount(ncclComm* comm, int* count) {
  CommunicatorUse use(comm, "ncclCommCount");
  if (use.error() != kNcclSuccess) return use.error();
  *count = use->size();
  return kNcclSuccess;
}

int ncclCommUserRank(ncclComm* comm, int* rank) {
  CommunicatorUse use(comm, "ncclCommUserRank");
  if (use.error() != kNcclSuccess) return use.error();
  *rank = use->rank();
  return kNcclSuccess;
}

int ncclCommCuDevice(ncclComm* comm, int* device) {
  CommunicatorUse use(comm, "ncclCommCuDevice");
  if (use.error() != kNcclSuccess) return use.error();
  *device = use->device();
  return kNcclSuccess;
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int dtype, int residence,
                             ncclComm* comm) {
  constexpr int kHostImmediate = 1;
  CommunicatorUse use(comm, "ncclRedOpCreatePreMulSum");
  if (use.error() != kNcclSuccess) return use.error();
  if (op == nullptr || scalar == nullptr || ElementSize(dtype) == 0 ||
      residence != kHostImmediate) {
    return kNcclInvalidArgument;
  }
  Scalar factor;
  factor.dtype = dtype;
  std::memcpy(factor.bits, scalar, ElementSize(dtype));
  *op = use->AddPreMulSum(factor);
  return kNcclSuccess;
}

int ncclRedOpDestroy(int op, ncclComm* comm) {
  CommunicatorUse use(comm, "ncclRedOpDestroy");
  if (use.error() != kNcclSuccess) return use.error();
  return use->RemoveOp(op) ? kNcclSuccess : kNcclInvalidArgument;
}

const char* ncclGetErrorString(int result) {
  constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  const bool is_known = result >= kNcclSuccess && result <= kNcclInProgress;
  return is_known ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm* comm) {
  thread_local std::string text;
  const auto communicator = FindCommunicator(comm);
  text = communicator == nullptr ? "" : communicator->last_error();
  return text.c_str();
}
