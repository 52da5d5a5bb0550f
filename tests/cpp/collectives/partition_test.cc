// Cutting ranges: every item exactly once, however uneven.
#include "tf_ops/collectives/partition.h"

#include <cstdint>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras {
namespace {

RING_TEST(PartsCoverEveryItemOnceAndDifferByOneAtMost) {
  for (size_t parts = 1; parts <= 9; ++parts) {
    for (size_t count = 0; count <= 40; ++count) {
      size_t next = 0;
      for (size_t index = 0; index < parts; ++index) {
        const Range part = Part(count, parts, index);
        ASSERT_EQ(part.begin, next);
        EXPECT_TRUE(part.size() == count / parts ||
                    part.size() == count / parts + 1);
        // The larger ones come first.
        EXPECT_EQ(part.size() > count / parts, index < count % parts);
        next = part.end;
      }
      ASSERT_EQ(next, count);
    }
  }
}

RING_TEST(PiecesCoverARangeAndAreEmptyPastItsEnd) {
  for (size_t piece = 1; piece <= 7; ++piece) {
    for (size_t size = 0; size <= 20; ++size) {
      const Range range = {100, 100 + size};
      const size_t count = CeilDivide(size, piece);
      size_t next = range.begin;
      for (size_t index = 0; index < count; ++index) {
        const Range got = Piece(range, piece, index);
        ASSERT_EQ(got.begin, next);
        EXPECT_TRUE(got.size() > 0 && got.size() <= piece);
        next = got.end;
      }
      ASSERT_EQ(next, range.end);
      EXPECT_EQ(Piece(range, piece, count).size(), 0);
      EXPECT_EQ(Piece(range, piece, count + 5).size(), 0);
    }
  }
}

// Sizes beyond 32 bits.
RING_TEST(HugeRangesDoNotOverflow) {
  const size_t count = (size_t{1} << 40) + 3;
  EXPECT_EQ(Part(count, 4, 3).end, count);
  EXPECT_EQ(Part(count, 4, 0).size(), (size_t{1} << 38) + 1);
  const Range last = Piece({0, count}, 131072, count / 131072);
  EXPECT_EQ(last.begin, size_t{1} << 40);
  EXPECT_EQ(last.size(), 3);
  const std::vector<int64_t> splits = {int64_t{1} << 33, 5, 0};
  EXPECT_EQ(SplitBytes(splits, 8, 1).begin, size_t{1} << 36);
  EXPECT_EQ(SplitBytes(splits, 8, 1).size(), 40);
  EXPECT_EQ(SplitBytes(splits, 8, 2).size(), 0);
}

RING_TEST(RowsOfScalarsEmptyAndHugeTensors) {
  EXPECT_EQ(RowCount({}), 1);
  EXPECT_EQ(RowCount({0, 5}), 0);
  CollectiveArguments arguments;
  arguments.dtype = DataType::kFloat32;
  arguments.inputs = {{nullptr, {}}};
  EXPECT_EQ(RowBytes(arguments), 4);
  EXPECT_EQ(WithRows(arguments, 3), Shape({3}));
  arguments.inputs = {{nullptr, {7, 0, 3}}};
  EXPECT_EQ(RowBytes(arguments), 0);
  EXPECT_EQ(WithRows(arguments, 2), Shape({2, 0, 3}));
  arguments.inputs = {{nullptr, {2, int64_t{1} << 31}}};
  EXPECT_EQ(RowBytes(arguments), size_t{1} << 33);
}

RING_TEST(SplitsAreEvenUnlessGiven) {
  EXPECT_EQ(SplitsOrEven({}, 12, 3), (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(SplitsOrEven({1, 0, 11}, 12, 3), (std::vector<int64_t>{1, 0, 11}));
}

}  // namespace
}  // namespace ring_keras
