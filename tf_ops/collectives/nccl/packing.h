// Which tensors share the fusion buffer, and where they lie in it.
#ifndef RING_KERAS_COLLECTIVES_NCCL_PACKING_H_
#define RING_KERAS_COLLECTIVES_NCCL_PACKING_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/cuda/pack.h"

namespace ring_keras::nccl {

// What fits the buffer at once. Counts are of elements.
struct PackedRound {
  struct Stretch {
    const char* input;
    char* output;
    uint64_t at;  // In the buffer.
    uint64_t count;
  };
  std::vector<Stretch> stretches;
  uint64_t count = 0;  // Gaps included.

  // From the tensors to a buffer of elements of `nbytes`, and back.
  std::vector<cuda::Segment> In(char* buffer, size_t nbytes) const {
    std::vector<cuda::Segment> segments;
    for (const Stretch& stretch : stretches) {
      segments.push_back(
          {stretch.input, buffer + stretch.at * nbytes, stretch.count});
    }
    return segments;
  }
  std::vector<cuda::Segment> Out(const char* buffer, size_t nbytes) const {
    std::vector<cuda::Segment> segments;
    for (const Stretch& stretch : stretches) {
      segments.push_back(
          {buffer + stretch.at * nbytes, stretch.output, stretch.count});
    }
    return segments;
  }
};

// Lays the tensors of the given indices out in rounds of up to `capacity`
// elements, which kPackedAlignment divides. What the last one has no room for,
// the next goes on with. The same on every rank whose shapes agree.
constexpr uint64_t kPackedAlignment = 16;  // Elements: 16 bytes, at least.

inline std::vector<PackedRound> Pack(const CollectiveArguments& arguments,
                                     const std::vector<size_t>& tensors,
                                     uint64_t capacity) {
  const size_t nbytes = SizeOf(arguments.dtype);
  std::vector<PackedRound> rounds;
  for (const size_t tensor : tensors) {
    const TensorView& input = arguments.inputs[tensor];
    const auto* from = static_cast<const char*>(input.data);
    auto* to = static_cast<char*>(arguments.outputs[tensor]);
    uint64_t left = ElementCount(input.shape);
    while (left > 0) {
      if (rounds.empty() || rounds.back().count == capacity) {
        rounds.emplace_back();
      }
      PackedRound& round = rounds.back();
      const uint64_t taken = std::min(left, capacity - round.count);
      round.stretches.push_back({from, to, round.count, taken});
      round.count +=
          (taken + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
      from += taken * nbytes;
      to += taken * nbytes;
      left -= taken;
    }
  }
  return rounds;
}

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_PACKING_H_
