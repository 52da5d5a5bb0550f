// Loops that the compiler makes vectors of, as those of updates.cc.
#include "tf_ops/reduce/int8_blocks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tf_ops/reduce/widest.h"

namespace ring_keras {
namespace {

constexpr float kLevels = 127;
constexpr float kPerLevel = 1.0f / 127;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kNan = 0x7fc00000;
// Added to a small number it leaves no bits for a fraction; the lowest 8 of
// those that there are then are the number's, rounded to the nearest even one.
constexpr float kRounder = 3 << 22;

RING_KERAS_INLINE int32_t BitsOf(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

RING_KERAS_INLINE float FromBits(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

RING_KERAS_INLINE float ScaleOf(const int8_t* row) {
  float scale;
  std::memcpy(&scale, row + kInt8Block, sizeof(scale));
  return scale;
}

struct Quantize {
  static RING_KERAS_INLINE void Run(const float* __restrict values,
                                    int8_t* __restrict row,
                                    float* __restrict left) {
    // Of positive numbers the larger one has the larger bits.
    int32_t largest = 0;
    for (size_t i = 0; i < kInt8Block; ++i) {
      const int32_t magnitude = BitsOf(values[i]) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    }
    const bool is_finite = largest < kInfinity;
    const float scale =
        is_finite ? FromBits(largest) * kPerLevel : FromBits(kNan);
    std::memcpy(row + kInt8Block, &scale, sizeof(scale));
    if (!is_finite || scale == 0.0f) {
      // Volatile, or the compiler may know better which NaN a difference is.
      const volatile float said = 0.0f * scale;
      const float all_say = said;
      std::memset(row, 0, kInt8Block);
      for (size_t i = 0; i < kInt8Block; ++i) left[i] = values[i] - all_say;
      return;
    }
    for (size_t i = 0; i < kInt8Block; ++i) {
      float level = values[i] / scale;
      // Scales below the smallest normal number are not exact.
      level = level < -kLevels ? -kLevels : level;
      level = level > kLevels ? kLevels : level;
      level += kRounder;
      row[i] = static_cast<int8_t>(BitsOf(level));
      left[i] = values[i] - (level - kRounder) * scale;
    }
  }
};

struct Dequantize {
  static RING_KERAS_INLINE void Run(const int8_t* __restrict row,
                                    float* __restrict values) {
    const float scale = ScaleOf(row);
    for (size_t i = 0; i < kInt8Block; ++i) {
      values[i] = static_cast<float>(row[i]) * scale;
    }
  }
};

struct Add {
  static RING_KERAS_INLINE void Run(const int8_t* __restrict row,
                                    float* __restrict total) {
    const float scale = ScaleOf(row);
    for (size_t i = 0; i < kInt8Block; ++i) {
      total[i] += static_cast<float>(row[i]) * scale;
    }
  }
};

}  // namespace

void QuantizeBlock(const float* values, int8_t* row, float* left) {
  RunWidest<Quantize>(values, row, left);
}

void DequantizeBlock(const int8_t* row, float* values) {
  RunWidest<Dequantize>(row, values);
}

void AddBlock(const int8_t* row, float* total) { RunWidest<Add>(row, total); }

}  // namespace ring_keras
