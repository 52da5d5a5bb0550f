#include "tf_ops/common/spare_memory.h"

#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(SpareMemoryIsUsedAgainTheShortestThatFits) {
  SpareMemory spare(400);
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

RING_TEST(SpareMemoryKeepsNoMoreThanItMayAndRatherTheLonger) {
  SpareMemory spare(400);
  std::vector<SpareMemory::Buffer> shorter;
  for (int i = 0; i < 4; ++i) shorter.push_back(spare.Take(90));
  const SpareMemory::Buffer longer = spare.Take(100);
  for (const SpareMemory::Buffer& one : shorter) spare.Give(one);
  spare.Give(longer);
  EXPECT_TRUE(spare.Take(95).memory == longer.memory);
  // Its place was one of theirs, so three are left.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(spare.Take(1).nbytes, 90);
  EXPECT_EQ(spare.Take(1).nbytes, 1);
}

RING_TEST(ALongBufferKeepsOutNoOthers) {
  SpareMemory spare(400);
  const SpareMemory::Buffer kept = spare.Take(50);
  spare.Give(kept);
  spare.Give(spare.Take(101));
  EXPECT_TRUE(spare.Take(1).memory == kept.memory);
  EXPECT_EQ(spare.Take(1).nbytes, 1);
}

RING_TEST(SpareMemoryHasNoneForNothing) {
  SpareMemory spare(400);
  spare.Give(spare.Take(60));
  EXPECT_TRUE(spare.Take(0).memory == nullptr);
  spare.Give({});
  EXPECT_EQ(spare.Take(60).nbytes, 60);
}

}  // namespace
}  // namespace ring_keras
