#include <algorithm>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/status.h"
#include "tf_ops/reduce/kernel_table.h"
#include "tf_ops/reduce/reduce.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ring_keras::testing {
namespace {

using reduce::KernelTable;

std::string Label(const KernelTable& table, ReduceOp op) {
  return StrCat(table.name, " ", NameOf(op));
}

// Calls `function(table, dtype, op, reduce)` for everything there is.
template <typename F>
void ForEachReduceFunction(F function) {
  for (const KernelTable* table : RunnableTables()) {
    for (DataType dtype : AllDataTypes()) {
      for (ReduceOp op : AllReduceOps()) {
        if (!Supports(dtype, op)) continue;
        function(*table, dtype, op,
                 table->reduce[static_cast<int>(dtype)][static_cast<int>(op)]);
      }
    }
  }
}

template <typename T>
T ReduceOne(ReduceFunction reduce, T a, T b) {
  T out;
  reduce(&out, &a, &b, 1);
  return out;
}

RING_TEST(SupportsWhatMakesSense) {
  for (DataType dtype : AllDataTypes()) {
    const bool is_bool = dtype == DataType::kBool;
    EXPECT_EQ(Supports(dtype, ReduceOp::kSum), !is_bool);
    EXPECT_EQ(Supports(dtype, ReduceOp::kProduct), !is_bool);
    EXPECT_EQ(Supports(dtype, ReduceOp::kAverage), IsFloatingPoint(dtype));
    EXPECT_TRUE(Supports(dtype, ReduceOp::kMin));
    EXPECT_TRUE(Supports(dtype, ReduceOp::kMax));
  }
}

RING_TEST(TablesHoldWhatIsSupported) {
  for (const KernelTable* table : RunnableTables()) {
    for (DataType dtype : AllDataTypes()) {
      const int row = static_cast<int>(dtype);
      for (ReduceOp op : AllReduceOps()) {
        const int column = static_cast<int>(op);
        EXPECT_EQ(table->reduce[row][column] != nullptr, Supports(dtype, op));
        EXPECT_EQ(table->reduce_many[row][column] != nullptr,
                  Supports(dtype, op));
        EXPECT_EQ(table->reduce_scaled[row][column] != nullptr,
                  IsFloatingPoint(dtype));
      }
    }
  }
}

RING_TEST(PicksTheWidestTable) {
  const KernelTable* widest = RunnableTables().back();
  EXPECT_EQ(std::string(InstructionSet()), widest->name);
  EXPECT_EQ(GetReduceFunction(DataType::kFloat32, ReduceOp::kSum) ==
                widest->reduce[static_cast<int>(DataType::kFloat32)]
                              [static_cast<int>(ReduceOp::kSum)],
            true);
  EXPECT_TRUE(reduce::FindKernels("abacus") == nullptr);
}

RING_TEST(EveryFunctionMatchesTheReference) {
  std::vector<size_t> counts = {1023, 4099};
  for (size_t count = 0; count <= 67; ++count) counts.push_back(count);
  for (size_t count = 127; count <= 129; ++count) counts.push_back(count);
  ForEachReduceFunction([&](const KernelTable& table, DataType dtype,
                            ReduceOp op, ReduceFunction reduce) {
    for (size_t count : counts) {
      const Bytes a = RandomElements(dtype, count, 1);
      const Bytes b = RandomElements(dtype, count, 2);
      const Bytes expected =
          ReferenceReduce(dtype, op, {a.data(), b.data()}, count);

      // Apart, with addresses that suit no vector.
      Buffer left(a, 1);
      Buffer right(b, 3);
      Buffer out(a.size(), 7);
      reduce(out.data(), left.data(), right.data(), count);
      ASSERT_EQ(FirstDifference(dtype, expected, out.data()), "")
          << Label(table, op);
      ASSERT_TRUE(out.IsEndIntact()) << Label(table, op);

      // In place of either side.
      reduce(left.data(), left.data(), right.data(), count);
      ASSERT_EQ(FirstDifference(dtype, expected, left.data()), "")
          << Label(table, op) << ", out is a";
      std::copy(a.begin(), a.end(), left.data());
      reduce(right.data(), left.data(), right.data(), count);
      ASSERT_EQ(FirstDifference(dtype, expected, right.data()), "")
          << Label(table, op) << ", out is b";
    }
  });
}

RING_TEST(EveryValueOf16BitFloats) {
  constexpr size_t kCount = 65536;
  std::vector<uint16_t> every(kCount);
  for (size_t i = 0; i < kCount; ++i) every[i] = static_cast<uint16_t>(i);
  // Zeros, the smallest denormal, one and its like, a large number, infinity
  // and a NaN, as they read in either type.
  const std::vector<uint16_t> others = {0x0000, 0x8000, 0x0001, 0x3c01,
                                        0x3f81, 0xfb7f, 0x7c00, 0x7f81};
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      for (uint16_t other : others) {
        const std::vector<uint16_t> same(kCount, other);
        const Bytes expected =
            ReferenceReduce(dtype, op, {every.data(), same.data()}, kCount);
        for (const KernelTable* table : RunnableTables()) {
          const ReduceFunction reduce =
              table->reduce[static_cast<int>(dtype)][static_cast<int>(op)];
          std::vector<uint16_t> out(kCount);
          reduce(out.data(), every.data(), same.data(), kCount);
          EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
              << Label(*table, op) << " with " << other;
        }
      }
    }
  }
}

RING_TEST(NanIsTheSameEverywhere) {
  ForEachReduceFunction([](const KernelTable& table, DataType dtype,
                           ReduceOp op, ReduceFunction reduce) {
    const std::string label = Label(table, op);
    if (dtype == DataType::kFloat32) {
      // A negative signalling NaN with payload, on both sides.
      EXPECT_EQ(ReduceOne<uint32_t>(reduce, 0xff812345, 0x3f800000),
                0x7fc00000u)
          << label;
      EXPECT_EQ(ReduceOne<uint32_t>(reduce, 0x3f800000, 0xff812345),
                0x7fc00000u)
          << label;
    } else if (dtype == DataType::kFloat64) {
      EXPECT_EQ(ReduceOne<uint64_t>(reduce, 0xfff0000000000001, 0),
                0x7ff8000000000000u)
          << label;
    } else if (dtype == DataType::kFloat16) {
      EXPECT_EQ(ReduceOne<uint16_t>(reduce, 0x0001, 0xfc01), 0x7e00) << label;
    } else if (dtype == DataType::kBfloat16) {
      EXPECT_EQ(ReduceOne<uint16_t>(reduce, 0x0001, 0xff81), 0x7fc0) << label;
    }
  });
}

RING_TEST(MinAndMaxOrderTheZeros) {
  for (const KernelTable* table : RunnableTables()) {
    const int row = static_cast<int>(DataType::kFloat32);
    const auto min = table->reduce[row][static_cast<int>(ReduceOp::kMin)];
    const auto max = table->reduce[row][static_cast<int>(ReduceOp::kMax)];
    constexpr uint32_t kPlus = 0;
    constexpr uint32_t kMinus = 0x80000000;
    EXPECT_EQ(ReduceOne(min, kPlus, kMinus), kMinus) << table->name;
    EXPECT_EQ(ReduceOne(min, kMinus, kPlus), kMinus) << table->name;
    EXPECT_EQ(ReduceOne(max, kPlus, kMinus), kPlus) << table->name;
    EXPECT_EQ(ReduceOne(max, kMinus, kPlus), kPlus) << table->name;
  }
}

// Makes this thread flush denormals, as TensorFlow's do.
void FlushDenormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  asm volatile("msr fpcr, %0" : : "r"(mode | uint64_t{1} << 24));
#endif
}

RING_TEST(TheCallersFloatModeHasNoEffect) {
  constexpr size_t kCount = 1021;
  ForEachReduceFunction([](const KernelTable& table, DataType dtype,
                           ReduceOp op, ReduceFunction reduce) {
    const Bytes a = RandomElements(dtype, kCount, 3);
    const Bytes b = RandomElements(dtype, kCount, 4);
    const Bytes expected =
        ReferenceReduce(dtype, op, {a.data(), b.data()}, kCount);
    Bytes out(a.size());

    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetround(FE_UPWARD);
    FlushDenormals();
    reduce(out.data(), a.data(), b.data(), kCount);
    const int rounding_after = std::fegetround();
    volatile float smallest_normal = 1.17549435e-38f;
    volatile float half_of_it = smallest_normal * 0.5f;
    std::fesetenv(&before);

    EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
        << Label(table, op);
    EXPECT_EQ(rounding_after, FE_UPWARD) << Label(table, op);
    EXPECT_EQ(half_of_it, 0.0f) << Label(table, op) << ": flushing was undone";
  });
}

}  // namespace
}  // namespace ring_keras::testing
