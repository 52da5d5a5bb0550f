// Who gets which rows.
#ifndef RING_KERAS_COLLECTIVES_PARTITION_H_
#define RING_KERAS_COLLECTIVES_PARTITION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ring_keras {

struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Part `index` of `parts` of `count` items; the first parts get one more when
// they cannot be equal.
inline Range Part(size_t count, size_t parts, size_t index) {
  const size_t base = count / parts;
  const size_t extra = count % parts;
  const size_t begin = index * base + std::min(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// The same of `nbytes` bytes of whole elements.
inline Range ElementPart(size_t nbytes, size_t element_nbytes, size_t parts,
                         size_t index) {
  const Range elements = Part(nbytes / element_nbytes, parts, index);
  return {elements.begin * element_nbytes, elements.end * element_nbytes};
}

// Piece `index` of a range cut into pieces of `piece` items; empty past its
// end.
inline Range Piece(Range range, size_t piece, size_t index) {
  const size_t begin = std::min(range.end, range.begin + index * piece);
  return {begin, std::min(range.end, begin + piece)};
}

inline size_t CeilDivide(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_PARTITION_H_
