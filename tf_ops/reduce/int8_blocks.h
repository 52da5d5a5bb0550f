// Numbers of 8 bits in blocks that have one scale each.
#ifndef RING_KERAS_REDUCE_INT8_BLOCKS_H_
#define RING_KERAS_REDUCE_INT8_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/export.h"

namespace ring_keras {

// A block travels as a row: its levels, then the bytes of its scale, a float.
constexpr size_t kInt8Block = 256;
constexpr size_t kInt8RowBytes = kInt8Block + sizeof(float);

// As in updates.h, every sum, product and quotient is rounded by itself, in the
// caller's mode: the bits are those of one TensorFlow op after the other on the
// same thread. No arrays overlap.

// Writes what 8 bits can say of a block, and `left`: the values less that. Of a
// block with a value that is not finite the scale is NaN, and so is all of it.
RING_KERAS_EXPORT void QuantizeBlock(const float* values, int8_t* row,
                                     float* left);

// What a row says.
RING_KERAS_EXPORT void DequantizeBlock(const int8_t* row, float* values);

// Adds it to `total`.
RING_KERAS_EXPORT void AddBlock(const int8_t* row, float* total);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_INT8_BLOCKS_H_
