// Tensors cut along their first dimension.
#ifndef RING_KERAS_COLLECTIVES_ROWS_H_
#define RING_KERAS_COLLECTIVES_ROWS_H_

#include <cstdint>
#include <vector>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/partition.h"

namespace ring_keras {

// Rows of a tensor; a scalar counts as one row.
inline int64_t RowCount(const Shape& shape) {
  return shape.empty() ? 1 : shape[0];
}

// Bytes of one row of the collective's only input.
inline size_t RowBytes(const CollectiveArguments& arguments) {
  const Shape& shape = arguments.inputs[0].shape;
  size_t nbytes = SizeOf(arguments.dtype);
  for (size_t i = 1; i < shape.size(); ++i) nbytes *= shape[i];
  return nbytes;
}

// The shape of the collective's only input with `rows` rows instead of its
// own.
inline Shape WithRows(const CollectiveArguments& arguments, int64_t rows) {
  Shape shape = arguments.inputs[0].shape;
  if (shape.empty()) return {rows};
  shape[0] = rows;
  return shape;
}

// The rows that rank `rank` of `size` gets of a reduce_scatter of `rows` rows:
// the first ranks get one more when they cannot be equal.
inline Range ReduceScatterRows(int64_t rows, int size, int rank) {
  return Part(rows, size, rank);
}

// kAlltoall: rows that each rank gets of an input with `rows` rows.
inline std::vector<int64_t> SplitsOrEven(const std::vector<int64_t>& splits,
                                         int64_t rows, int size) {
  if (!splits.empty()) return splits;
  return std::vector<int64_t>(size, rows / size);
}

// The bytes that go to rank `rank`, of a tensor cut by `splits`.
inline Range SplitBytes(const std::vector<int64_t>& splits, size_t row_nbytes,
                        int rank) {
  size_t begin = 0;
  for (int i = 0; i < rank; ++i) begin += splits[i] * row_nbytes;
  return {begin, begin + splits[rank] * row_nbytes};
}

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_ROWS_H_
