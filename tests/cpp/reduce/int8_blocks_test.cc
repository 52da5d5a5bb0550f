#include "tf_ops/reduce/int8_blocks.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/cpp/reduce/floats.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/weighted_sum.h"

namespace ring_keras::testing {
namespace {

using Row = std::vector<int8_t>;

float ScaleOf(const Row& row) {
  float scale;
  std::memcpy(&scale, row.data() + kInt8Block, sizeof(scale));
  return scale;
}

// Like a model's: of similar size, the largest up to `largest`.
Floats Block(float largest, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats block(kInt8Block);
  for (float& value : block) value = uniform(generator) * largest;
  return block;
}

struct Said {
  Row row = Row(kInt8RowBytes);
  Floats left = Floats(kInt8Block);
};

Said Quantized(const Floats& block) {
  Said said;
  QuantizeBlock(block.data(), said.row.data(), said.left.data());
  return said;
}

// As they are written down, one operation after the other.
Said SaidAsWritten(const Floats& block) {
  Said said;
  float largest = 0;
  bool is_finite = true;
  for (const float value : block) {
    is_finite = is_finite && std::isfinite(value);
    largest = std::max(largest, std::abs(value));
  }
  const float scale = is_finite ? Rounded(largest * (1.0f / 127)) : kNan;
  std::memcpy(said.row.data() + kInt8Block, &scale, sizeof(scale));
  for (size_t i = 0; i < kInt8Block; ++i) {
    float level = 0;
    if (is_finite && scale != 0) {
      level = std::nearbyint(Rounded(block[i] / scale));
      level = std::clamp(level, -127.0f, 127.0f);
    }
    said.row[i] = static_cast<int8_t>(level);
    said.left[i] = block[i] - Rounded(static_cast<float>(said.row[i]) * scale);
  }
  return said;
}

void ExpectAsWritten(const Floats& block, const char* what) {
  const Said got = Quantized(block);
  const Said expected = SaidAsWritten(block);
  EXPECT_TRUE(got.row == expected.row) << what;
  EXPECT_TRUE(SameBits(got.left, expected.left)) << what;
}

RING_TEST(ABlockIsSaidAsItIsWrittenDown) {
  // The last ones have scales that are not exact, or none.
  for (const float largest :
       {1.0f, 3e-20f, FLT_MAX, 1e-36f, 1e-40f, 3e-44f, 3e-45f}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      ExpectAsWritten(Block(largest, seed), "similar numbers");
    }
  }
  ExpectAsWritten(Floats(kInt8Block, 0.0f), "zeros");
  ExpectAsWritten(Floats(kInt8Block, -0.0f), "negative zeros");

  Floats halves(kInt8Block);
  for (size_t i = 0; i < kInt8Block; ++i) {
    halves[i] = static_cast<float>(i) - 127.5f;
  }
  halves[0] = -127;
  halves[255] = 127;
  ExpectAsWritten(halves, "halfway between two levels");
}

RING_TEST(NothingIsLostBesideTheScale) {
  const Floats block = Block(5, 1);
  const Said said = Quantized(block);
  Floats values(kInt8Block);
  DequantizeBlock(said.row.data(), values.data());
  const float scale = ScaleOf(said.row);
  for (size_t i = 0; i < kInt8Block; ++i) {
    EXPECT_EQ(values[i], Rounded(static_cast<float>(said.row[i]) * scale));
    EXPECT_EQ(said.left[i], Rounded(block[i] - values[i]));
    EXPECT_TRUE(std::abs(said.left[i]) <= scale * 0.5001f);
  }
}

RING_TEST(WhatIsNotFiniteIsTheWholeBlocks) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Floats block = Block(1, 2);
    block[77] = bad;
    const Said said = Quantized(block);
    EXPECT_TRUE(std::isnan(ScaleOf(said.row)));
    Floats total(kInt8Block, 1.0f);
    AddBlock(said.row.data(), total.data());
    for (size_t i = 0; i < kInt8Block; ++i) {
      EXPECT_EQ(said.row[i], 0);
      EXPECT_TRUE(std::isnan(said.left[i]));
      EXPECT_TRUE(std::isnan(total[i]));
    }
  }
}

RING_TEST(BlocksAddUpInOrder) {
  Floats total(kInt8Block);
  Floats expected(kInt8Block);
  for (unsigned rank = 0; rank < 5; ++rank) {
    const Said said = Quantized(Block(1.0f + rank * 1000, rank));
    AddBlock(said.row.data(), total.data());
    for (size_t i = 0; i < kInt8Block; ++i) {
      expected[i] +=
          Rounded(static_cast<float>(said.row[i]) * ScaleOf(said.row));
    }
  }
  EXPECT_TRUE(SameBits(total, expected));
  // The sum of zeros has a sign.
  Floats zeros(kInt8Block);
  AddBlock(Quantized(Floats(kInt8Block, -0.0f)).row.data(), zeros.data());
  EXPECT_TRUE(SameBits(zeros, Floats(kInt8Block, 0.0f)));
}

RING_TEST(AWeightedSumIsRoundedTwice) {
  for (const size_t count : {0, 1, 7, 8, 9, 100, 256}) {
    const Floats values = Block(1, 3);
    Floats others = Block(1, 4);
    Floats expected = others;
    for (size_t i = 0; i < count; ++i) {
      expected[i] = Rounded(values[i] * 0.1f) + others[i];
    }
    WeightedSum(values.data(), 0.1f, others.data(), count, others.data());
    EXPECT_TRUE(SameBits(others, expected)) << count;
  }
}

}  // namespace
}  // namespace ring_keras::testing
