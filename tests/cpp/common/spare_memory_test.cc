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
  // There is no room for it, and it does not take that of another.
  spare.Give(spare.Take(70));
  EXPECT_TRUE(spare.Take(60).memory == kept.memory);
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
