// Which pattern runs, by bytes, members and what has been set.
#include "tf_ops/collectives/pattern_choice.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

constexpr size_t kKiB = 1 << 10;
constexpr size_t kMiB = 1 << 20;

LanePattern* Pick(int members, size_t nbytes, const Tuning& tuning = {},
                  size_t message_nbytes = 128 * kKiB) {
  return PickPattern(tuning, DataType::kFloat32, members, nbytes,
                     message_nbytes);
}

RING_TEST(FewMembersReduceByPartsAndThenInARing) {
  for (int members : {2, 4, 8}) {
    EXPECT_TRUE(Pick(members, 16 * kKiB) == ReduceByDoubling);
    EXPECT_TRUE(Pick(members, 16 * kKiB + 1) == ReduceByParts);
    EXPECT_TRUE(Pick(members, kMiB) == ReduceByParts);
    EXPECT_TRUE(Pick(members, kMiB + 1) == ReduceByRing);
  }
}

RING_TEST(TwoSendEachOtherAllWhereMessagesCostMuch) {
  EXPECT_TRUE(Pick(2, kMiB, {}, kMiB) == ReduceByDoubling);
  EXPECT_TRUE(Pick(2, kMiB + 1, {}, kMiB) == ReduceByRing);
  EXPECT_TRUE(Pick(4, kMiB, {}, kMiB) == ReduceByParts);
  Tuning tuning;
  tuning.recursive_doubling_max_bytes = 10;
  EXPECT_TRUE(Pick(2, kMiB, tuning, kMiB) == ReduceByParts);
}

RING_TEST(ManyMembersReduceByHalvingUntilARingsMessagesAreLong) {
  for (int members : {9, 16, 512, 4096}) {
    const size_t long_enough = 128 * kKiB * static_cast<size_t>(members);
    // Doubling needs connections that the others do not.
    EXPECT_TRUE(Pick(members, 16 * kKiB) ==
                (members <= 128 ? ReduceByDoubling : ReduceByHalving));
    EXPECT_TRUE(Pick(members, 16 * kKiB + 1) == ReduceByHalving);
    EXPECT_TRUE(Pick(members, long_enough) == ReduceByHalving);
    EXPECT_TRUE(Pick(members, long_enough + 1) == ReduceByRing);
  }
}

RING_TEST(WhatIsSetHoldsWhateverTheNumberOfMembers) {
  Tuning tuning;
  tuning.recursive_doubling_max_bytes = 0;
  tuning.parts_max_bytes = 10;
  tuning.halving_max_bytes = 20;
  tuning.trees_max_bytes = 30;
  for (int members : {2, 512}) {
    EXPECT_TRUE(Pick(members, 10, tuning) == ReduceByParts);
    EXPECT_TRUE(Pick(members, 11, tuning) == ReduceByHalving);
    EXPECT_TRUE(Pick(members, 21, tuning) == ReduceByTrees);
    EXPECT_TRUE(Pick(members, 31, tuning) == ReduceByRing);
  }
}

// Rounded once, by who has all of it.
RING_TEST(SixteenBitsGoByParts) {
  for (size_t nbytes : {kKiB, 100 * kMiB}) {
    for (int members : {2, 512}) {
      EXPECT_TRUE(PickPattern({}, DataType::kBfloat16, members, nbytes, kMiB) ==
                  ReduceByParts);
    }
  }
}

RING_TEST(WhatGoesToAllShrinksWhereThereAreMany) {
  EXPECT_EQ(Thresholds({}, 2).direct_max_bytes, 4 * kKiB);
  EXPECT_EQ(Thresholds({}, 256).direct_max_bytes, 4 * kKiB);
  EXPECT_EQ(Thresholds({}, 512).direct_max_bytes, 2 * kKiB);
  EXPECT_EQ(Thresholds({}, 4096).direct_max_bytes, kKiB / 4);
}

RING_TEST(MessagesAreOfWholeElementsAndGrowWithTheData) {
  for (size_t ranks : {2, 3, 17, 24, 1000}) {
    size_t before = 0;
    for (size_t nbytes = 1; nbytes < 1000 * kMiB; nbytes = nbytes * 7 / 4 + 3) {
      const size_t message = MessageBytes(nbytes, ranks, kMiB);
      EXPECT_EQ(message % 64, 0);
      EXPECT_TRUE(before <= message && message <= kMiB);
      before = message;
      EXPECT_EQ(MessageBytes(nbytes, ranks, 128 * kKiB), 128 * kKiB);
    }
    EXPECT_TRUE(before >= 128 * kKiB && (ranks > 16 || before == kMiB));
  }
}

}  // namespace
}  // namespace ring_keras
