#include "tf_ops/common/spare_memory.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(SpareMemoryIsUsedAgainTheShortestThatFits) {
  SpareMemory spare(100);
  const char* longer = nullptr;
  const char* shorter = nullptr;
  {
    const SpareMemory::Loan a(spare, 60);
    const SpareMemory::Loan b(spare, 30);
    longer = a.get();
    shorter = b.get();
  }
  const SpareMemory::Loan first(spare, 20);
  EXPECT_TRUE(first.get() == shorter);
  const SpareMemory::Loan second(spare, 20);
  EXPECT_TRUE(second.get() == longer);
}

RING_TEST(SpareMemoryKeepsNoMoreThanItMay) {
  SpareMemory spare(100);
  const SpareMemory::Buffer kept = spare.Take(60);
  spare.Give(kept);
  spare.Give(spare.Take(101));  // Longer than all that it may.
  EXPECT_TRUE(spare.Take(60).memory == kept.memory);
  // Two together are too much: the longer one stays.
  const SpareMemory::Buffer longer = spare.Take(70);
  spare.Give(kept);
  spare.Give(longer);
  spare.Give(kept);
  EXPECT_TRUE(spare.Take(1).memory == longer.memory);
  EXPECT_FALSE(spare.Take(1).memory == kept.memory);
}

RING_TEST(SpareMemoryHasNoneForNothing) {
  SpareMemory spare(100);
  spare.Give(spare.Take(60));
  EXPECT_TRUE(spare.Take(0).memory == nullptr);
  spare.Give({});
  EXPECT_EQ(spare.Take(60).nbytes, 60);
}

}  // namespace
}  // namespace ring_keras
