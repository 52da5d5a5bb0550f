// By counting: how many values have which leading bits says which leading bits
// the smallest value has that is kept; then the next bits of those.
#include "tf_ops/reduce/largest.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tf_ops/reduce/widest.h"

namespace ring_keras {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;

// The bits of a key are these three numbers: the exponent with the first of the
// fraction, and the rest in two.
constexpr int kFirst = 12;
constexpr int kSecond = 10;
constexpr int kThird = 9;
static_assert(kFirst + kSecond + kThird == 31);

// Orders as magnitudes do; of all that is not finite it is the same.
RING_KERAS_INLINE uint32_t KeyOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits &= 0x7fffffff;
  bits = bits < kInfinity ? bits : kInfinity;
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  return magnitude > 0.0f ? bits : 0;
}

// Calls `take` with the place and the key of each value.
template <typename Take>
RING_KERAS_INLINE void ForEachKey(const float* values, size_t count,
                                  const Take& take) {
  constexpr size_t kAtOnce = 512;
  uint32_t keys[kAtOnce];
  size_t begin = 0;
  for (; count - begin >= kAtOnce; begin += kAtOnce) {
    for (size_t i = 0; i < kAtOnce; ++i) keys[i] = KeyOf(values[begin + i]);
    for (size_t i = 0; i < kAtOnce; ++i) take(begin + i, keys[i]);
  }
  for (; begin < count; ++begin) take(begin, KeyOf(values[begin]));
}

// Of keys, how many have which number of `kBits` bits.
template <int kBits>
struct Counts {
  uint32_t of[1 << kBits] = {};

  // The number of the `rank`-th largest, from 1 on; less of `rank` then are
  // those with larger numbers.
  RING_KERAS_INLINE uint32_t Find(size_t& rank) const {
    uint32_t number = (1 << kBits) - 1;
    for (; of[number] < rank; --number) rank -= of[number];
    return number;
  }
};

struct Find {
  static RING_KERAS_INLINE void Run(const float* values, size_t count,
                                    size_t kept, int32_t* candidates,
                                    int32_t* places) {
    // Of those that have all the numbers found so far, so many are kept.
    size_t rank = kept;

    Counts<kFirst> firsts;
    ForEachKey(values, count, [&](size_t, uint32_t key) {
      ++firsts.of[key >> (kSecond + kThird)];
    });
    uint32_t least = firsts.Find(rank);

    // From here on only those that may be kept.
    size_t candidate_count = 0;
    const uint32_t bound = least << (kSecond + kThird);
    ForEachKey(values, count, [&](size_t place, uint32_t key) {
      candidates[candidate_count] = static_cast<int32_t>(place);
      candidate_count += key >= bound;
    });

    Counts<kSecond> seconds;
    for (size_t i = 0; i < candidate_count; ++i) {
      const uint32_t key = KeyOf(values[candidates[i]]) >> kThird;
      seconds.of[key % (1 << kSecond)] += key >> kSecond == least;
    }
    least = least << kSecond | seconds.Find(rank);

    Counts<kThird> thirds;
    for (size_t i = 0; i < candidate_count; ++i) {
      const uint32_t key = KeyOf(values[candidates[i]]);
      thirds.of[key % (1 << kThird)] += key >> kThird == least;
    }
    least = least << kThird | thirds.Find(rank);

    for (size_t i = 0; i < candidate_count; ++i) {
      const uint32_t key = KeyOf(values[candidates[i]]);
      if (key < least || (key == least && rank == 0)) continue;
      rank -= key == least;
      *places++ = candidates[i];
    }
  }
};

}  // namespace

void FindLargest(const float* values, size_t count, size_t kept,
                 int32_t* scratch, int32_t* places) {
  if (kept > 0) RunWidest<Find>(values, count, kept, scratch, places);
}

}  // namespace ring_keras
