// NCCL calls that become one group: the device gets all of them or none, and
// they run side by side.
#ifndef RING_KERAS_COLLECTIVES_NCCL_CALLS_H_
#define RING_KERAS_COLLECTIVES_NCCL_CALLS_H_

#include <cstddef>

#include "tf_ops/collectives/nccl/nccl_api.h"

namespace ring_keras::nccl {

// After the first failure, the rest is left out.
class Calls {
 public:
  Calls(const Api& api, CommHandle comm, StreamHandle stream)
      : api_(api), comm_(comm), stream_(stream) {}

  void AllReduce(const void* input, void* output, size_t count, int dtype,
                 int op) {
    if (ok()) {
      Keep(api_.AllReduce(input, output, count, dtype, op, comm_, stream_));
    }
  }
  void ReduceScatter(const void* input, void* output, size_t count, int dtype,
                     int op) {
    if (ok()) {
      Keep(api_.ReduceScatter(input, output, count, dtype, op, comm_, stream_));
    }
  }
  void AllGather(const void* input, void* output, size_t count, int dtype) {
    if (ok()) {
      Keep(api_.AllGather(input, output, count, dtype, comm_, stream_));
    }
  }
  void Broadcast(const void* input, void* output, size_t nbytes, int root) {
    if (ok()) {
      Keep(api_.Broadcast(input, output, nbytes, kUint8, root, comm_, stream_));
    }
  }
  void Send(const void* input, size_t count, int dtype, int peer) {
    if (ok()) Keep(api_.Send(input, count, dtype, peer, comm_, stream_));
  }
  void Receive(void* output, size_t count, int dtype, int peer) {
    if (ok()) Keep(api_.Recv(output, count, dtype, peer, comm_, stream_));
  }

  int result() const { return result_; }

 private:
  bool ok() const { return result_ == kSuccess; }
  void Keep(int result) {
    if (result != kInProgress) result_ = result;
  }

  const Api& api_;
  CommHandle comm_;
  StreamHandle stream_;
  int result_ = kSuccess;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_CALLS_H_
