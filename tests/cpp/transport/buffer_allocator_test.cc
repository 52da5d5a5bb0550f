// Buffers: zeroed, apart from each other, known by address, and given back.
#include "tf_ops/transport/shm/buffer_allocator.h"

#include <cstring>
#include <memory>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

std::shared_ptr<BufferAllocator> NewAllocator() {
  std::shared_ptr<Segment> segment = std::move(Segment::Create(1).value());
  return std::make_shared<BufferAllocator>(std::move(segment));
}

RING_TEST(ABufferIsZeroAlsoWhenItsMemoryHadAnotherUse) {
  const auto allocator = NewAllocator();
  for (size_t nbytes : {size_t{1}, size_t{5000}, size_t{3} << 20}) {
    for (int i = 0; i < 3; ++i) {
      const auto buffer = allocator->Allocate(nbytes).value();
      auto* bytes = static_cast<unsigned char*>(buffer.get());
      for (size_t at = 0; at < nbytes; ++at) ASSERT_EQ(int{bytes[at]}, 0);
      std::memset(bytes, 0xff, nbytes);
    }
  }
}

RING_TEST(BuffersDoNotOverlapAndGapsAreUsedAgain) {
  const auto allocator = NewAllocator();
  std::vector<std::shared_ptr<void>> buffers;
  for (int i = 0; i < 8; ++i) {
    buffers.push_back(allocator->Allocate(10000 + i).value());
    std::memset(buffers.back().get(), i, 10000 + i);
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(int{static_cast<char*>(buffers[i].get())[10000 + i - 1]}, i);
  }
  void* second = buffers[2].get();
  buffers[1].reset();
  buffers[3].reset();
  buffers[2].reset();  // Joins the gaps on both sides.
  const auto large = allocator->Allocate(3 * 12288).value();
  EXPECT_TRUE(large.get() < second);
}

RING_TEST(ABufferIsFoundByAnyAddressInIt) {
  const auto allocator = NewAllocator();
  const auto first = allocator->Allocate(4096).value();
  const auto second = allocator->Allocate(4096).value();
  char* data = static_cast<char*>(second.get());
  uint64_t offset = 0;
  EXPECT_TRUE(allocator->Find(data + 100, 3996, &offset));
  EXPECT_EQ(offset, uint64_t{4196});
  EXPECT_FALSE(allocator->Find(data + 100, 3997, &offset));
  EXPECT_FALSE(allocator->Find(first.get(), 4097, &offset));
  int elsewhere = 0;
  EXPECT_FALSE(allocator->Find(&elsewhere, sizeof(elsewhere), &offset));
}

RING_TEST(TooMuchIsAnErrorAndMemoryOutlivesTheAllocator) {
  auto allocator = NewAllocator();
  for (size_t nbytes : {kBufferAreaBytes + 1, ~size_t{0}}) {
    const auto refused = allocator->Allocate(nbytes);
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  }
  const auto kept = allocator->Allocate(8192).value();
  allocator.reset();
  std::memset(kept.get(), 1, 8192);
}

}  // namespace
}  // namespace ring_keras
