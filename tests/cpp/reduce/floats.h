// What tests of arithmetic on floats share.
#ifndef RING_KERAS_TESTS_REDUCE_FLOATS_H_
#define RING_KERAS_TESTS_REDUCE_FLOATS_H_

#include <cstring>
#include <limits>
#include <vector>

namespace ring_keras::testing {

using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rounded: what it is given leaves the registers, so no compiler makes one
// operation of two.
template <typename T>
T Rounded(T value) {
  volatile T stored = value;
  return stored;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace ring_keras::testing

#endif  // RING_KERAS_TESTS_REDUCE_FLOATS_H_
