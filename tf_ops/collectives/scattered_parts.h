// What each rank gets of a reduce_scatter, some of it at a time.
#ifndef RING_KERAS_COLLECTIVES_SCATTERED_PARTS_H_
#define RING_KERAS_COLLECTIVES_SCATTERED_PARTS_H_

#include <algorithm>
#include <vector>

#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/rows.h"
#include "tf_ops/collectives/scaled_reduction.h"

namespace ring_keras {

// Ranges are in bytes of the inputs, one behind the other.
class ScatteredParts {
 public:
  // `slice_nbytes`: of one rank's part in a round, at most, in whole elements.
  ScatteredParts(const CollectiveArguments& arguments, int size,
                 size_t slice_nbytes)
      : tensors_(arguments), slice_nbytes_(slice_nbytes) {
    size_t end = 0;
    for (int rank = 0; rank < size; ++rank) {
      const size_t begin = end;
      if (!arguments.splits.empty()) {
        end += arguments.splits[rank] * SizeOf(arguments.dtype);
      } else {
        end += RowsOf(arguments, size, rank) * RowBytes(arguments);
      }
      parts_.push_back({begin, end});
    }
  }

  // The shape of what a rank gets.
  static Shape OutputOf(const CollectiveArguments& arguments, int size,
                        int rank) {
    if (!arguments.splits.empty()) return {arguments.splits[rank]};
    return WithRows(arguments, RowsOf(arguments, size, rank));
  }

  size_t round_count() const {
    size_t longest = 0;
    for (const Range& part : parts_) longest = std::max(longest, part.size());
    return CeilDivide(longest, slice_nbytes_);
  }
  Range PartOf(int rank) const { return parts_[rank]; }
  Range Slice(int rank, size_t round) const {
    return Piece(parts_[rank], slice_nbytes_, round);
  }
  // Puts a slice's values there, multiplied as before a reduction.
  template <typename Copy = PlainCopy>
  void CopyIn(const ScaledReduction& reduction, Range slice, char* to,
              Copy&& copy = {}) const {
    tensors_.ForEach(
        slice.begin, slice.end,
        [&](const char* input, char*, size_t offset, size_t nbytes) {
          reduction.CopyIn(to + offset, input, nbytes, copy);
        });
  }

 private:
  static size_t RowsOf(const CollectiveArguments& arguments, int size,
                       int rank) {
    const int64_t rows = RowCount(arguments.inputs[0].shape);
    return ReduceScatterRows(rows, size, rank).size();
  }

  FusedTensors tensors_;
  std::vector<Range> parts_;
  size_t slice_nbytes_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SCATTERED_PARTS_H_
