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
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {

// The results for so many ranks are written one beside the other. Of more, the
// same bytes of all do not fit into L1: memory that begins where a page does
// takes the same few places there.
constexpr int kSideBySideRanks = 8;
// With more ranks, so much is reduced by one, then copied while in its L1.
constexpr size_t kInPlaceBlockBytes = 8 << 10;
// Between looks at the clock.
constexpr size_t kInPlaceSomeBytes = 1 << 20;

// What `rank` reduces of a tensor, in whole cache lines.
inline Range InPlacePart(size_t nbytes, int size, int rank) {
  const Range lines = Part(CeilDivide(nbytes, kCacheLine), size, rank);
  return {std::min(nbytes, lines.begin * kCacheLine),
          std::min(nbytes, lines.end * kCacheLine)};
}

// Memory of all ranks of a host, `inputs` to be reduced to `outputs`. An output
// that is not where its rank's input is goes past the caches if
// `outlasts_caches`, but for one from which others are copied: reading it
// before it is written would be for nothing. Other ranks see such bytes after
// StreamingFence.
struct InPlaceTensor {
  const char* const* inputs;
  char* const* outputs;
  int size;  // Ranks.
  bool outlasts_caches;

  ReduceOutput output(int rank, size_t at) const {
    char* const data = outputs[rank] + at;
    return {data, outlasts_caches && inputs[rank] != outputs[rank] &&
                      CanStream(data)};
  }
};

// For kSideBySideRanks at most.
inline void ReduceSideBySide(const ScaledReduction& reduction,
                             const InPlaceTensor& tensor, size_t begin,
                             size_t end) {
  const void* sources[kSideBySideRanks] = {};
  ReduceOutput outs[kSideBySideRanks] = {};
  for (int rank = 0; rank < tensor.size; ++rank) {
    sources[rank] = tensor.inputs[rank] + begin;
    outs[rank] = tensor.output(rank, begin);
  }
  reduction.Combine(outs, tensor.size, sources, tensor.size, end - begin);
}

inline void ReduceBlock(const ScaledReduction& reduction,
                        const InPlaceTensor& tensor, int own, size_t begin,
                        size_t nbytes) {
  const void* sources[kSharedMaxRanks] = {};
  for (int rank = 0; rank < tensor.size; ++rank) {
    sources[rank] = tensor.inputs[rank] + begin;
  }
  const char* reduced = tensor.outputs[own] + begin;
  reduction.Combine(tensor.outputs[own] + begin, sources, tensor.size, nbytes);
  for (int rank = 0; rank < tensor.size; ++rank) {
    if (rank == own) continue;
    const ReduceOutput output = tensor.output(rank, begin);
    if (output.streams) {
      StreamingCopy(output.data, reduced, nbytes);
    } else {
      std::memcpy(output.data, reduced, nbytes);
    }
  }
}

// The bytes from `begin` to `end`, by rank `own`. No memory of any rank is
// touched by two.
inline void ReduceInPlace(const ScaledReduction& reduction,
                          const InPlaceTensor& tensor, int own, size_t begin,
                          size_t end) {
  if (tensor.size <= kSideBySideRanks) {
    return ReduceSideBySide(reduction, tensor, begin, end);
  }
  for (size_t at = begin; at < end; at += kInPlaceBlockBytes) {
    ReduceBlock(reduction, tensor, own, at,
                std::min(kInPlaceBlockBytes, end - at));
  }
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_IN_PLACE_H_
