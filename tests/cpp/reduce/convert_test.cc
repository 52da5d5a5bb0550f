#include <cstring>
#include <limits>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/kernel_table.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras::testing {
namespace {

using reduce::KernelTable;

const DataType kNarrowTypes[] = {DataType::kFloat16, DataType::kBfloat16};

Bytes EveryValue() {
  Bytes every(2 * 65536);
  for (size_t i = 0; i < 65536; ++i) {
    every[2 * i] = static_cast<unsigned char>(i & 0xff);
    every[2 * i + 1] = static_cast<unsigned char>(i >> 8);
  }
  return every;
}

// Scaling by 1 leaves a value as it is, and makes every NaN the canonical one.
RING_TEST(EveryValueSurvivesTheWayThereAndBack) {
  for (DataType dtype : kNarrowTypes) {
    const Bytes expected = ReferenceScale(dtype, EveryValue(), 1.0);
    for (const KernelTable* table : RunnableTables()) {
      Bytes wide(4 * 65536), back(2 * 65536);
      const int index = static_cast<int>(dtype);
      table->widen[index](wide.data(), EveryValue().data(), 1.0, 65536);
      table->narrow[index](back.data(), wide.data(), 1.0, 65536);
      EXPECT_EQ(FirstDifference(dtype, expected, back.data()), "")
          << table->name;
    }
  }
}

// The reference sums one operand in float32 and rounds once: a 16-bit scaling
// by `factor` does what Widen by it and Narrow by 1 do.
RING_TEST(FactorsAreAppliedInFloat32) {
  for (DataType dtype : kNarrowTypes) {
    for (double factor : {0.5, 1.0 / 3, -2.5, 1e-3, 0.0, 1e10}) {
      const Bytes expected = ReferenceScale(dtype, EveryValue(), factor);
      for (const KernelTable* table : RunnableTables()) {
        const int index = static_cast<int>(dtype);
        Bytes wide(4 * 65536), back(2 * 65536);
        table->widen[index](wide.data(), EveryValue().data(), factor, 65536);
        table->narrow[index](back.data(), wide.data(), 1.0, 65536);
        EXPECT_EQ(FirstDifference(dtype, expected, back.data()), "")
            << table->name << " widened times " << factor;
        table->widen[index](wide.data(), EveryValue().data(), 1.0, 65536);
        table->narrow[index](back.data(), wide.data(), factor, 65536);
        EXPECT_EQ(FirstDifference(dtype, expected, back.data()), "")
            << table->name << " narrowed times " << factor;
      }
    }
  }
}

// What lies between two values goes to the nearer, a tie to the even one.
RING_TEST(EveryTableRoundsAlike) {
  const Bytes in = RandomElements(DataType::kFloat32, 100003, 3);
  for (DataType dtype : kNarrowTypes) {
    const int index = static_cast<int>(dtype);
    Bytes expected(2 * 100003);
    reduce::kScalarKernels.narrow[index](expected.data(), in.data(), 1.0,
                                         100003);
    for (const KernelTable* table : RunnableTables()) {
      for (size_t count : {0, 1, 7, 8, 15, 16, 17, 63, 100003}) {
        Buffer out(2 * count, 1);
        Buffer source(Bytes(in.begin(), in.begin() + 4 * count), 3);
        table->narrow[index](out.data(), source.data(), 1.0, count);
        EXPECT_EQ(
            FirstDifference(
                dtype, Bytes(expected.begin(), expected.begin() + 2 * count),
                out.data()),
            "")
            << table->name << " of " << count;
        EXPECT_TRUE(out.IsEndIntact()) << table->name;
      }
    }
  }
  const float ties[] = {1.00390625f, 1.01171875f, 3.4e38f, 65520.0f};
  uint16_t bf16[4], half[4];
  Narrow(DataType::kBfloat16, bf16, ties, 1.0, 4);
  Narrow(DataType::kFloat16, half, ties, 1.0, 4);
  EXPECT_EQ(bf16[0], 0x3f80);  // 1 + 2^-8: between 1 and 1 + 2^-7.
  EXPECT_EQ(bf16[1], 0x3f82);
  EXPECT_EQ(bf16[2], 0x7f80);  // Infinity.
  EXPECT_EQ(half[3], 0x7c00);
}

}  // namespace
}  // namespace ring_keras::testing
