// A step of an allreduce of tensors that all ranks of a host can read and write
// where they lie.
#ifndef RING_KERAS_COLLECTIVES_IN_PLACE_H_
#define RING_KERAS_COLLECTIVES_IN_PLACE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/reduce/streaming_copy.h"

namespace ring_keras {

// Reduced by one rank, then copied to the others while in its L1. No memory of
// any rank is touched by two.
constexpr size_t kInPlaceBlockBytes = 8 << 10;
// Between looks at the clock.
constexpr size_t kInPlaceSomeBytes = 1 << 20;

// What `rank` reduces of a tensor, in whole cache lines.
inline Range InPlacePart(size_t nbytes, int size, int rank) {
  const Range lines = Part(CeilDivide(nbytes, kCacheLine), size, rank);
  return {std::min(nbytes, lines.begin * kCacheLine),
          std::min(nbytes, lines.end * kCacheLine)};
}

// Block by block, from `*at` to `end`: `inputs` of all ranks, to `outputs` of
// all. An output that is not where its rank's input is goes past the caches if
// `outlasts_caches`: reading it before it is written would be for nothing.
// Other ranks see such bytes after StreamingCopyFence.
inline void ReduceInPlace(const ScaledReduction& reduction,
                          const char* const* inputs, char* const* outputs,
                          int size, int rank, bool outlasts_caches, size_t* at,
                          size_t end) {
  const auto is_streamed = [&](int peer) {
    return outlasts_caches && inputs[peer] != outputs[peer];
  };
  bool streams = false;
  for (int peer = 0; peer < size; ++peer) streams |= is_streamed(peer);
  alignas(kCacheLine) char block[kStreamedBlockBytes];
  const void* sources[kSharedMaxRanks];
  while (*at < end) {
    const size_t nbytes = streams
                              ? StreamedBlock(outputs[rank] + *at, end - *at)
                              : std::min(kInPlaceBlockBytes, end - *at);
    for (int peer = 0; peer < size; ++peer) sources[peer] = inputs[peer] + *at;
    char* reduced = is_streamed(rank) ? block : outputs[rank] + *at;
    reduction.Combine(reduced, sources, size, nbytes);
    for (int peer = 0; peer < size; ++peer) {
      char* output = outputs[peer] + *at;
      if (output == reduced) continue;
      if (is_streamed(peer)) {
        StreamingCopy(output, reduced, nbytes);
      } else {
        std::memcpy(output, reduced, nbytes);
      }
    }
    *at += nbytes;
  }
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_IN_PLACE_H_
