#include "tf_ops/reduce/largest.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/cpp/reduce/floats.h"
#include "tests/cpp/support/test.h"

namespace ring_keras::testing {
namespace {

using Places = std::vector<int32_t>;

Places Largest(const Floats& values, size_t kept) {
  Places scratch(values.size());
  Places places(kept);
  FindLargest(values.data(), values.size(), kept, scratch.data(),
              places.data());
  return places;
}

Places LargestBySorting(const Floats& values, size_t kept) {
  const auto magnitude = [&values](int32_t place) {
    const float value = values[place];
    return std::isfinite(value) ? std::abs(value) : kInfinity;
  };
  Places places(values.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(), [&](int32_t a, int32_t b) {
    return magnitude(a) > magnitude(b);
  });
  places.resize(kept);
  std::sort(places.begin(), places.end());
  return places;
}

void ExpectLargest(const Floats& values, const char* what) {
  const size_t count = values.size();
  for (const size_t kept : {size_t{0}, size_t{1}, (count + 31) / 32, count / 2,
                            count - std::min<size_t>(count, 1), count}) {
    if (kept > count) continue;
    EXPECT_EQ(Largest(values, kept), LargestBySorting(values, kept))
        << what << ", " << kept << " of " << count;
  }
}

Floats NormalValues(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

constexpr size_t kCounts[] = {0, 1, 2, 31, 33, 511, 512, 513, 5000};

RING_TEST(TheLargestAreThoseOfSorting) {
  for (const size_t count : kCounts) {
    ExpectLargest(NormalValues(count, 1), "similar numbers");

    Floats of_all_sizes = NormalValues(count, 2);
    for (size_t i = 0; i < count; ++i) {
      of_all_sizes[i] *= std::pow(10.0f, static_cast<float>(i % 80) - 42);
    }
    ExpectLargest(of_all_sizes, "numbers of all sizes");

    // They differ in their last bits alone.
    Floats alike(count);
    for (size_t i = 0; i < count; ++i) {
      alike[i] = 1 + static_cast<float>(i * 7 % 4000) * 0x1p-23f;
    }
    ExpectLargest(alike, "numbers that are nearly the same");
  }
}

RING_TEST(OfEqualOnesTheFirstAreKept) {
  for (const size_t count : kCounts) {
    Floats few = NormalValues(count, 3);
    for (float& value : few) value = std::round(value);
    ExpectLargest(few, "few numbers");
    ExpectLargest(Floats(count, -2.5f), "one number");
    Floats zeros(count);
    for (size_t i = 0; i < count; i += 3) zeros[i] = -0.0f;
    ExpectLargest(zeros, "zeros");
    Floats subnormal(count);
    for (size_t i = 0; i < count; ++i) {
      subnormal[i] = static_cast<float>(i % 5) * 0x1p-149f;
    }
    ExpectLargest(subnormal, "the smallest numbers");
  }
}

RING_TEST(WhatIsNotFiniteGoesFirst) {
  for (const size_t count : kCounts) {
    Floats values = NormalValues(count, 4);
    const float bad[] = {kNan, -kInfinity, -kNan, kInfinity};
    for (size_t i = 3; i < count; i += 40) values[i] = bad[i % 4];
    ExpectLargest(values, "some that are not finite");
  }
}

#if defined(__x86_64__)
RING_TEST(ZerosAreThoseOfTheCaller) {
  Floats values(600, 0x1p-140f);
  values[300] = 0x1p-126f;
  values[599] = 0x1p-127f;
  Places places;
  std::thread([&] {
    _mm_setcsr(_mm_getcsr() | 0x8040);  // As TensorFlow's threads.
    places = Largest(values, 3);
  }).join();
  EXPECT_EQ(places, (Places{0, 1, 300}));
  EXPECT_EQ(Largest(values, 3), (Places{0, 300, 599}));
}
#endif

}  // namespace
}  // namespace ring_keras::testing
