// NCCL's functions that the stand-in exports, as NVIDIA declares them: its
// enumerations are ints here, streams and registrations void*.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_ABI_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_ABI_H_

#include <limits.h>
#include <stddef.h>

#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

enum NcclType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};

enum NcclOp : int {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAvg = 4,
  kNcclFirstCustomOp = 5,
};

constexpr int kNcclSplitNoColor = -1;
constexpr int kNcclUndefined = INT_MIN;

struct NcclUniqueId {
  char bytes[128];
};

// As of NCCL 2.18; later ones append.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
};

}  // namespace ring_keras::stand_in

struct ncclComm;

extern "C" {

#define RING_KERAS_NCCL RING_KERAS_EXPORT int

RING_KERAS_NCCL ncclGetVersion(int* version);
RING_KERAS_NCCL ncclGetUniqueId(ring_keras::stand_in::NcclUniqueId* id);
RING_KERAS_NCCL ncclCommInitRank(ncclComm** comm, int size,
                                 ring_keras::stand_in::NcclUniqueId id,
                                 int rank);
RING_KERAS_NCCL ncclCommInitRankConfig(
    ncclComm** comm, int size, ring_keras::stand_in::NcclUniqueId id, int rank,
    ring_keras::stand_in::NcclConfig* config);
RING_KERAS_NCCL ncclCommSplit(ncclComm* comm, int color, int key,
                              ncclComm** part,
                              ring_keras::stand_in::NcclConfig* config);
RING_KERAS_NCCL ncclCommGetAsyncError(ncclComm* comm, int* error);
RING_KERAS_NCCL ncclCommFinalize(ncclComm* comm);
RING_KERAS_NCCL ncclCommDestroy(ncclComm* comm);
RING_KERAS_NCCL ncclCommAbort(ncclComm* comm);
RING_KERAS_NCCL ncclCommCount(ncclComm* comm, int* count);
RING_KERAS_NCCL ncclCommUserRank(ncclComm* comm, int* rank);
RING_KERAS_NCCL ncclCommCuDevice(ncclComm* comm, int* device);
RING_KERAS_NCCL ncclCommRegister(ncclComm* comm, void* buffer, size_t size,
                                 void** handle);
RING_KERAS_NCCL ncclCommDeregister(ncclComm* comm, void* handle);
RING_KERAS_NCCL ncclMemAlloc(void** memory, size_t size);
RING_KERAS_NCCL ncclMemFree(void* memory);
RING_KERAS_NCCL ncclRedOpCreatePreMulSum(int* op, void* scalar, int dtype,
                                         int residence, ncclComm* comm);
RING_KERAS_NCCL ncclRedOpDestroy(int op, ncclComm* comm);
RING_KERAS_NCCL ncclGroupStart();
RING_KERAS_NCCL ncclGroupEnd();
RING_KERAS_NCCL ncclAllReduce(const void* input, void* output, size_t count,
                              int dtype, int op, ncclComm* comm, void* stream);
RING_KERAS_NCCL ncclReduce(const void* input, void* output, size_t count,
                           int dtype, int op, int root, ncclComm* comm,
                           void* stream);
RING_KERAS_NCCL ncclReduceScatter(const void* input, void* output, size_t count,
                                  int dtype, int op, ncclComm* comm,
                                  void* stream);
RING_KERAS_NCCL ncclAllGather(const void* input, void* output, size_t count,
                              int dtype, ncclComm* comm, void* stream);
RING_KERAS_NCCL ncclBroadcast(const void* input, void* output, size_t count,
                              int dtype, int root, ncclComm* comm,
                              void* stream);
RING_KERAS_NCCL ncclSend(const void* input, size_t count, int dtype, int peer,
                         ncclComm* comm, void* stream);
RING_KERAS_NCCL ncclRecv(void* output, size_t count, int dtype, int peer,
                         ncclComm* comm, void* stream);
RING_KERAS_EXPORT const char* ncclGetErrorString(int result);
RING_KERAS_EXPORT const char* ncclGetLastError(ncclComm* comm);

#undef RING_KERAS_NCCL
}

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_ABI_H_
