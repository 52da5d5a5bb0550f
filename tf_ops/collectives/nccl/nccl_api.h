// The part of NCCL's interface that we use, declared by ourselves so that it is
// not needed to build; tests/cpp/collectives/nccl/declarations_test.cc compares
// the declarations with NVIDIA's where those are installed.
#ifndef RING_KERAS_COLLECTIVES_NCCL_NCCL_API_H_
#define RING_KERAS_COLLECTIVES_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <optional>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::nccl {

using cuda::StreamHandle;
using CommHandle = void*;  // ncclComm_t

// ncclResult_t
constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInternalError = 3;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
// ncclDataType_t
constexpr int kInt8 = 0;
constexpr int kUint8 = 1;
constexpr int kInt32 = 2;
constexpr int kInt64 = 4;
constexpr int kFloat16 = 6;
constexpr int kFloat32 = 7;
constexpr int kFloat64 = 8;
constexpr int kBfloat16 = 9;
// ncclRedOp_t
constexpr int kSum = 0;
constexpr int kProduct = 1;
constexpr int kMax = 2;
constexpr int kMin = 3;
// ncclScalarResidence_t
constexpr int kScalarOnHost = 1;

constexpr int kNoColor = -1;  // NCCL_SPLIT_NOCOLOR

struct UniqueId {
  char bytes[128];
};

// ncclConfig_t as of NCCL 2.18; newer libraries take the older form for what it
// says it is.
struct Config {
  static constexpr int kUndefined = INT_MIN;

  size_t nbytes = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

// Functions are named as in libnccl, without their "nccl".
struct Api {
  int (*GetVersion)(int* version);
  int (*GetUniqueId)(UniqueId* id);
  int (*CommInitRankConfig)(CommHandle* comm, int size, UniqueId id, int rank,
                            Config* config);
  int (*CommSplit)(CommHandle comm, int color, int key, CommHandle* part,
                   Config* config);
  int (*CommGetAsyncError)(CommHandle comm, int* error);
  int (*CommAbort)(CommHandle comm);
  int (*CommFinalize)(CommHandle comm);
  int (*CommDestroy)(CommHandle comm);
  int (*AllReduce)(const void* input, void* output, size_t count, int dtype,
                   int op, CommHandle comm, StreamHandle stream);
  int (*Broadcast)(const void* input, void* output, size_t count, int dtype,
                   int root, CommHandle comm, StreamHandle stream);
  int (*AllGather)(const void* input, void* output, size_t count, int dtype,
                   CommHandle comm, StreamHandle stream);
  int (*ReduceScatter)(const void* input, void* output, size_t count, int dtype,
                       int op, CommHandle comm, StreamHandle stream);
  int (*Send)(const void* input, size_t count, int dtype, int peer,
              CommHandle comm, StreamHandle stream);
  int (*Recv)(void* output, size_t count, int dtype, int peer, CommHandle comm,
              StreamHandle stream);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*RedOpCreatePreMulSum)(int* op, void* scalar, int dtype, int residence,
                              CommHandle comm);
  int (*RedOpDestroy)(int op, CommHandle comm);
  const char* (*GetErrorString)(int result);
  const char* (*GetLastError)(CommHandle comm);

  // Since 2.19; null in older libraries.
  int (*MemAlloc)(void** memory, size_t nbytes);
  int (*MemFree)(void* memory);
  int (*CommRegister)(CommHandle comm, void* buffer, size_t nbytes,
                      void** registration);
  int (*CommDeregister)(CommHandle comm, void* registration);
};

// NCCL, opened by the first call; any thread. Internal: there is none, or it is
// older than 2.18; the same answer to every call.
StatusOr<const Api*> GetApi();

// What a call returned, with `what` (as in "joining a communicator") and NCCL's
// own words if it failed. PeerLost: the connection to another rank ended;
// otherwise Internal. Requires that GetApi() has succeeded. `comm` may be null.
Status ToStatus(int result, const char* what, CommHandle comm);

// NCCL's number of the type, if NCCL computes with it.
std::optional<int> NumberOf(DataType dtype);
// Averages are sums of what each rank has multiplied by its share before.
int NumberOf(ReduceOp op);

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_NCCL_API_H_
