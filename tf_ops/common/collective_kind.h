// The collectives that ranks can enter together.
#ifndef RING_KERAS_COMMON_COLLECTIVE_KIND_H_
#define RING_KERAS_COMMON_COLLECTIVE_KIND_H_

#include <cstdint>

namespace ring_keras {

// The numbers travel between ranks: append, never renumber.
enum class CollectiveKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kReduceScatter = 3,
  kAlltoall = 4,
  kBarrier = 5,
  kJoin = 6,
};

constexpr int kCollectiveKindCount = 7;

constexpr const char* NameOf(CollectiveKind kind) {
  constexpr const char* kNames[kCollectiveKindCount] = {
      "allreduce", "allgather", "broadcast", "reduce_scatter",
      "alltoall",  "barrier",   "join"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_COLLECTIVE_KIND_H_
