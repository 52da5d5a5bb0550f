#include "tf_ops/reduce/updates.h"

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/cpp/reduce/floats.h"
#include "tests/cpp/support/test.h"

namespace ring_keras::testing {
namespace {

template <typename T>
std::vector<T> Values(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<T> uniform(-2, 2);
  std::vector<T> values(count);
  for (T& value : values) value = uniform(generator);
  return values;
}

// Sizes below, at and beyond those of vectors, from where none is aligned.
template <typename T, typename Body>
void ForEachSize(const Body& body) {
  for (size_t offset : {0, 1}) {
    for (size_t count : {0, 1, 3, 7, 8, 9, 31, 64, 100, 1001}) {
      body(offset, count);
    }
  }
}

template <typename T>
void TestMomentum(bool nesterov) {
  ForEachSize<T>([nesterov](size_t offset, size_t count) {
    std::vector<T> variable = Values<T>(offset + count, 1);
    std::vector<T> momentum = Values<T>(offset + count, 2);
    const std::vector<T> gradient = Values<T>(offset + count, 3);
    std::vector<T> expected = variable;
    std::vector<T> expected_momentum = momentum;
    const MomentumUpdate<T> update = {T(0.1), T(0.9), nesterov};
    for (size_t i = offset; i < offset + count; ++i) {
      const T descent = Rounded(gradient[i] * update.rate);
      T& m = expected_momentum[i];
      m = Rounded(Rounded(m * update.decay) - descent);
      expected[i] +=
          nesterov ? Rounded(Rounded(m * update.decay) - descent) : m;
    }
    update.Run(variable.data() + offset, momentum.data() + offset,
               gradient.data() + offset, count);
    EXPECT_TRUE(SameBits(variable, expected)) << count;
    EXPECT_TRUE(SameBits(momentum, expected_momentum)) << count;
  });
}

template <typename T>
void TestAdam() {
  ForEachSize<T>([](size_t offset, size_t count) {
    std::vector<T> variable = Values<T>(offset + count, 1);
    std::vector<T> momentum = Values<T>(offset + count, 2);
    std::vector<T> velocity = Values<T>(offset + count, 3);
    for (T& value : velocity) value = std::abs(value);
    const std::vector<T> gradient = Values<T>(offset + count, 4);
    std::vector<T> expected = variable;
    std::vector<T> expected_momentum = momentum;
    std::vector<T> expected_velocity = velocity;
    const AdamUpdate<T> update = {T(0.003), T(1 - 0.9), T(1 - 0.999), T(1e-7)};
    for (size_t i = offset; i < offset + count; ++i) {
      const T g = gradient[i];
      T& m = expected_momentum[i];
      T& v = expected_velocity[i];
      m = m + Rounded(Rounded(g - m) * update.momentum_share);
      v = v + Rounded(Rounded(Rounded(g * g) - v) * update.velocity_share);
      const T root = Rounded(Rounded(std::sqrt(v)) + update.epsilon);
      expected[i] = expected[i] - Rounded(Rounded(m * update.rate) / root);
    }
    update.Run(variable.data() + offset, momentum.data() + offset,
               velocity.data() + offset, gradient.data() + offset, count);
    EXPECT_TRUE(SameBits(variable, expected)) << count;
    EXPECT_TRUE(SameBits(momentum, expected_momentum)) << count;
    EXPECT_TRUE(SameBits(velocity, expected_velocity)) << count;
  });
}

RING_TEST(MomentumRoundsEachOperation) {
  for (bool nesterov : {false, true}) {
    TestMomentum<float>(nesterov);
    TestMomentum<double>(nesterov);
  }
}

RING_TEST(AdamRoundsEachOperation) {
  TestAdam<float>();
  TestAdam<double>();
}

}  // namespace
}  // namespace ring_keras::testing
