// Ranks that reduce data among themselves, and the patterns in which they can.
//
// Sums on the way travel in the data's type, in all patterns but ReduceByParts:
// of 16-bit floats they may leave its range.
//
// A lane is all ranks of a communicator, or one of each host. A pattern takes
// equally many bytes of each member, and leaves their reduction, multiplied as
// `reduction` says, in place of them: the same bits on every member, and again
// when repeated. Three patterns have two halves: first each member has the
// reduction of its chunk alone, then all have all. A lane can stop at half.
#ifndef RING_KERAS_COLLECTIVES_LANE_H_
#define RING_KERAS_COLLECTIVES_LANE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras {

struct Lane {
  Communicator& communicator;
  uint64_t key;              // Of the collective.
  std::vector<int> members;  // Ranks of the communicator.
  int index;                 // This rank's place among them.
  const ScaledReduction& reduction;
  // Whether it stops at half: bytes that are not of this rank's chunk are then
  // anything. Not in ReduceByDoubling and ReduceByTrees.
  bool scatters = false;

  int size() const { return static_cast<int>(members.size()); }
  // Tags that one run of a pattern uses: of 2 (size - 1) trips, or of chunks.
  uint32_t tag_count() const {
    return std::max(2 * static_cast<uint32_t>(size()) + 2, kMinTags);
  }
  static constexpr uint32_t kMinTags = 256;
};

// Which bytes are the chunk of which member: one behind the other.
class LaneChunks {
 public:
  // Of whole elements, as equal as they can be.
  LaneChunks(size_t nbytes, size_t element_nbytes, int members)
      : nbytes_(nbytes), element_nbytes_(element_nbytes), members_(members) {}
  // By where each ends.
  explicit LaneChunks(std::vector<size_t> ends)
      : nbytes_(ends.back()), ends_(std::move(ends)) {}

  size_t nbytes() const { return nbytes_; }
  Range operator()(size_t member) const {
    if (ends_.empty()) {
      return ElementPart(nbytes_, element_nbytes_, members_, member);
    }
    return {member == 0 ? 0 : ends_[member - 1], ends_[member]};
  }

 private:
  size_t nbytes_;
  size_t element_nbytes_ = 1;
  int members_ = 0;
  std::vector<size_t> ends_;
};

// `data` holds the chunks, each of whole elements, and outlives the task, as
// the lane does. `tag` is the first of the lane's tag_count() that nothing else
// uses.
using LanePattern = Task(const Lane& lane, char* data, LaneChunks chunks,
                         uint32_t tag);

// Members trade all their data with one, then with one of another pair, and so
// on: log2(size) trips, of nbytes each; up to two more when size is no power of
// two. For little data and many members. Source: Thakur, Rabenseifner & Gropp
// 2005, doi:10.1177/1094342005051521, section 4.5.
LanePattern ReduceByDoubling;

// Each member reduces a part, which all others send it, in the order of the
// members, then sends it to all: two trips, 2 (size - 1) messages, and
// 2 (size - 1) / size x nbytes sent, the least possible. 16-bit floats are
// summed in float32 and rounded once.
LanePattern ReduceByParts;

// Reduce-scatter, then allgather around a ring: 2 (size - 1) trips, and
// 2 (size - 1) / size x nbytes sent, always to the same neighbour. Source:
// Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
LanePattern ReduceByRing;

// Reduce-scatter, then allgather, to and from members at half, a quarter and so
// on of the way around: 2 log2(size) trips, rounded up, whatever the size, and
// 2 (size - 1) / size x nbytes sent. For many members and data of middling
// length. Source: Traff 2024, arXiv:2410.14234; with a power of two it sends as
// much, as often, as recursive halving and doubling.
LanePattern ReduceByHalving;

// Up two binary trees and down again, each with half of the data, in chunks
// that follow each other: 2 log2(size) trips, and 2 x nbytes sent, by a member
// to 4 others at most. For networks that carry little between most members.
// Source: see double_tree.h.
LanePattern ReduceByTrees;

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_LANE_H_
