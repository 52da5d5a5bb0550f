// Windows: handed out, given back, and reused only when nobody reads them.
#include "tf_ops/transport/shm/window.h"

#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

std::unique_ptr<Segment> MakeSegment() {
  auto segment = Segment::Create(2);
  EXPECT_OK(segment);
  return std::move(segment.value());
}

RING_TEST(AWindowIsReusedOnlyAfterItsReadersAreDone) {
  const auto segment = MakeSegment();
  WindowAllocator windows(segment.get());
  auto first = windows.Allocate(1000);
  ASSERT_OK(first);
  windows.Release(first.value(), 2);
  auto second = windows.Allocate(1000);
  ASSERT_OK(second);
  EXPECT_NE(second.value(), first.value());
  first.value()->readers_done.fetch_add(1);
  auto third = windows.Allocate(1000);
  ASSERT_OK(third);
  EXPECT_NE(third.value(), first.value());
  first.value()->packed.store(9);
  first.value()->readers_done.fetch_add(1);
  auto fourth = windows.Allocate(1000);
  ASSERT_OK(fourth);
  EXPECT_EQ(fourth.value(), first.value());
  // As good as new.
  EXPECT_EQ(fourth.value()->packed.load(), 0);
  EXPECT_EQ(fourth.value()->reduced.load(), 0);
  EXPECT_EQ(fourth.value()->unpacked.load(), 0);
  EXPECT_EQ(fourth.value()->readers_done.load(), 0);
}

RING_TEST(AWindowThatNobodyReadsIsReusedAtOnce) {
  const auto segment = MakeSegment();
  WindowAllocator windows(segment.get());
  Window* window = windows.Allocate(1000).value();
  windows.Release(window, 0);
  EXPECT_EQ(windows.Allocate(1000).value(), window);
}

RING_TEST(WindowsOfAnySizeDoNotOverlapAndKeepTheirSize) {
  const auto segment = MakeSegment();
  WindowAllocator windows(segment.get());
  std::vector<std::pair<Window*, size_t>> taken;
  for (int round = 0; round < 3; ++round) {
    for (size_t nbytes :
         {size_t{0}, size_t{1}, 4096 - sizeof(Window), 4097 - sizeof(Window),
          size_t{100000}, size_t{262144}}) {
      auto window = windows.Allocate(nbytes);
      ASSERT_OK(window);
      taken.emplace_back(window.value(), nbytes);
    }
    if (round < 2) continue;
    for (const auto& [window, nbytes] : taken) windows.Release(window, 0);
  }
  for (const auto& [a, a_nbytes] : taken) {
    for (const auto& [b, b_nbytes] : taken) {
      EXPECT_TRUE(a == b ||
                  a->data() + a_nbytes <= reinterpret_cast<char*>(b) ||
                  b->data() + b_nbytes <= reinterpret_cast<char*>(a))
          << a_nbytes << " and " << b_nbytes;
    }
  }
  // All of them come back, each for its own size.
  std::set<Window*> known;
  for (const auto& [window, nbytes] : taken) known.insert(window);
  for (const auto& [window, nbytes] : taken) {
    EXPECT_EQ(known.count(windows.Allocate(nbytes).value()), 1);
  }
}

RING_TEST(AnExhaustedAreaIsAnErrorThatSaysSo) {
  const auto segment = MakeSegment();
  WindowAllocator windows(segment.get());
  constexpr size_t kQuarter = (kWindowAreaBytes >> 2) - sizeof(Window);
  std::vector<Window*> taken;
  for (int i = 0; i < 4; ++i) {
    auto window = windows.Allocate(kQuarter);
    ASSERT_OK(window);
    taken.push_back(window.value());
  }
  for (size_t nbytes : {size_t{0}, kQuarter, kWindowAreaBytes}) {
    const Status status = windows.Allocate(nbytes).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_TRUE(status.message().find("no room for a shared-memory window") !=
                std::string::npos)
        << status.message();
  }
  windows.Release(taken[2], 0);
  EXPECT_EQ(windows.Allocate(kQuarter).value(), taken[2]);
}

RING_TEST(AWindowTakesNoMoreThanItNeeds) {
  const auto segment = MakeSegment();
  WindowAllocator windows(segment.get());
  constexpr size_t kMebibyte = size_t{1} << 20;
  std::vector<Window*> taken;
  // A page each for the header.
  for (size_t i = 0; i < kWindowAreaBytes / (kMebibyte + 4096); ++i) {
    auto window = windows.Allocate(kMebibyte);
    ASSERT_OK(window);
    taken.push_back(window.value());
  }
  EXPECT_FALSE(windows.Allocate(kMebibyte).ok());
  // Neighbours make room for a larger one.
  for (int i : {7, 9, 8}) windows.Release(taken[i], 0);
  EXPECT_EQ(windows.Allocate(3 * kMebibyte).value(), taken[7]);
}

RING_TEST(APeerFindsAWindowByItsOffset) {
  const auto own = MakeSegment();
  auto attached =
      Segment::Attach(2, getpid(), own->descriptor(), own->header().nonce);
  ASSERT_OK(attached);
  WindowAllocator windows(own.get());
  ASSERT_OK(windows.Allocate(5000));
  Window* window = windows.Allocate(100).value();
  window->packed.store(3);
  window->data()[99] = 'x';
  Window* theirs = WindowAt(*attached.value(), windows.OffsetOf(window));
  ASSERT_TRUE(theirs != nullptr);
  EXPECT_EQ(theirs->packed.load(), 3);
  EXPECT_EQ(theirs->data()[99], 'x');
  for (uint64_t offset : {~uint64_t{0}, uint64_t{kWindowAreaBytes}, uint64_t{1},
                          ~uint64_t{4095}}) {
    EXPECT_TRUE(WindowAt(*own, offset) == nullptr) << offset;
  }
}

}  // namespace
}  // namespace ring_keras
