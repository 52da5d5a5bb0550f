// What a stream does when it comes to a call of NCCL.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_COLLECTIVE_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_COLLECTIVE_H_

#include <cstddef>
#include <vector>

#include "tests/stand_in/nccl/communicator.h"

namespace ring_keras::stand_in {

enum class CallKind : int {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};

const char* NameOf(CallKind kind);

struct Call {
  CallKind kind = CallKind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  // As NCCL counts it: of the shorter buffer where they differ.
  size_t count = 0;
  int dtype = 0;
  int op = 0;    // Reductions.
  int root = 0;  // Reduce and broadcast; the peer of sends and receives.
  bool is_pre_mul_sum = false;
  Scalar factor = {};  // If it is.
};

bool IsPointToPoint(CallKind kind);

// Does the calls that one group gave one communicator: collectives in order,
// then all sends and receives at the same time. Ends early if it is aborted.
// Waits until then if a peer's call is another one.
void Perform(Communicator& communicator, const std::vector<Call>& calls);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_COLLECTIVE_H_
