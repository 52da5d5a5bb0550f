#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/kernel_table.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras::testing {
namespace {

using reduce::KernelTable;

const std::vector<double>& Factors() {
  static const std::vector<double> factors = {
      0.0,  -0.0,    1.0,   -1.0,  0.5,   1.0 / 3,  2.5,
      1e-3, 0x1p-10, 65504, 1e300, 1e-40, INFINITY, NAN};
  return factors;
}

void ScaleWith(const KernelTable& table, DataType dtype, void* out,
               const void* in, double factor, size_t count) {
  const ReduceOutput to = {out};
  table
      .reduce_scaled[static_cast<int>(dtype)][static_cast<int>(ReduceOp::kSum)](
          &to, 1, &in, 1, factor, count);
}

RING_TEST(EveryFloatTableMatchesTheReference) {
  for (DataType dtype : AllDataTypes()) {
    if (!IsFloatingPoint(dtype)) continue;
    for (double factor : Factors()) {
      for (size_t count : {0, 1, 7, 63, 64, 67, 1023}) {
        const Bytes in = RandomElements(dtype, count, 5);
        const Bytes expected = ReferenceScale(dtype, in, factor);
        for (const KernelTable* table : RunnableTables()) {
          Buffer source(in, 1);
          Buffer out(in.size(), 3);
          ScaleWith(*table, dtype, out.data(), source.data(), factor, count);
          EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
              << table->name << " times " << factor;
          EXPECT_TRUE(out.IsEndIntact()) << table->name;

          ScaleWith(*table, dtype, source.data(), source.data(), factor, count);
          EXPECT_EQ(FirstDifference(dtype, expected, source.data()), "")
              << table->name << " times " << factor << " in place";
        }
      }
    }
  }
}

// All conversions both ways, with every kind of rounding.
RING_TEST(EveryConversionOf16BitFloats) {
  Bytes every(2 * 65536);
  for (size_t i = 0; i < 65536; ++i) {
    every[2 * i] = static_cast<unsigned char>(i & 0xff);
    every[2 * i + 1] = static_cast<unsigned char>(i >> 8);
  }
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (double factor : Factors()) {
      const Bytes expected = ReferenceScale(dtype, every, factor);
      for (const KernelTable* table : RunnableTables()) {
        Bytes out(every.size());
        ScaleWith(*table, dtype, out.data(), every.data(), factor, 65536);
        EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
            << table->name << " times " << factor;
      }
    }
  }
}

RING_TEST(ScaleTakesEveryTypeButBool) {
  for (DataType dtype : AllDataTypes()) {
    if (dtype == DataType::kBool) continue;
    for (double factor : Factors()) {
      const Bytes in = RandomElements(dtype, 333, 6);
      const Bytes expected = ReferenceScale(dtype, in, factor);
      Buffer buffer(in, 1);
      Scale(dtype, buffer.data(), buffer.data(), factor, 333);
      EXPECT_EQ(FirstDifference(dtype, expected, buffer.data()), "")
          << "times " << factor;
      EXPECT_TRUE(buffer.IsEndIntact());
    }
  }
}

RING_TEST(IntegersRoundTowardZeroAndSaturate) {
  int8_t small[] = {-7, 7, 100, -100};
  Scale(DataType::kInt8, small, small, 0.5, 2);
  Scale(DataType::kInt8, small + 2, small + 2, 2.0, 2);
  EXPECT_EQ(small[0], -3);
  EXPECT_EQ(small[1], 3);
  EXPECT_EQ(small[2], 127);
  EXPECT_EQ(small[3], -128);

  int64_t large[] = {std::numeric_limits<int64_t>::max(), 5};
  Scale(DataType::kInt64, large, large, 1.0, 1);
  Scale(DataType::kInt64, large + 1, large + 1, NAN, 1);
  EXPECT_EQ(large[0], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(large[1], 0);
}

}  // namespace
}  // namespace ring_keras::testing
