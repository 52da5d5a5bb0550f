// The ring between two threads that sleep whenever they cannot go on.
#include "tf_ops/transport/shm/ring_stream.h"

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>

#include "tests/cpp/support/test.h"
#include "tests/cpp/transport/transport_test_support.h"

namespace ring_keras {
namespace {

// Calls `attempt` until it moves something, and sleeps between as Mesh does;
// whether it did before the time was over.
template <typename Attempt>
bool MoveOrSleep(SharedEnd& end, Attempt attempt) {
  if (attempt()) return true;
  std::atomic<uint32_t>& sleeping = end.segment->header().sleeping;
  while (true) {
    sleeping.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool moved = attempt();
    if (moved) {
      sleeping.store(0, std::memory_order_relaxed);
      return true;
    }
    // Long, for a bell that is not rung to be noticed.
    pollfd entry = {end.doorbell->descriptor(), POLLIN, 0};
    if (poll(&entry, 1, 20000) != 1) return false;
    end.doorbell->Clear();
  }
}

// Neither end may sleep while the other waits for it, however the sizes fall.
RING_TEST(NoBellIsMissed) {
  constexpr uint64_t kTotalBytes = uint64_t{192} << 20;
  SharedEnd writer_end, reader_end;
  RingStream writer(&reader_end.segment->inbox(0),
                    &writer_end.segment->inbox(1), reader_end.remote.get());
  RingStream reader(&writer_end.segment->inbox(1),
                    &reader_end.segment->inbox(0), writer_end.remote.get());
  std::atomic<bool> failed{false};
  std::thread writing([&] {
    std::mt19937 random(1);
    const std::string data = Pattern(2 * kInboxBytes, 0);
    for (uint64_t sent = 0; sent < kTotalBytes && !failed;) {
      // Mostly small, so that the ring fills to the brim.
      const size_t wanted = std::min<uint64_t>(
          1 + random() % (random() % 4 == 0 ? kInboxBytes : 4096),
          kTotalBytes - sent);
      ssize_t count = 0;
      const bool moved = MoveOrSleep(writer_end, [&] {
        count = writer.TryWrite(data.data() + sent % kInboxBytes, wanted);
        return count > 0;
      });
      if (!moved) {
        EXPECT_TRUE(moved) << "the writer slept at " << sent;
        failed = true;
      }
      sent += count;
    }
  });
  std::mt19937 random(2);
  const std::string expected = Pattern(2 * kInboxBytes, 0);
  std::string got(kInboxBytes, '\0');
  for (uint64_t received = 0; received < kTotalBytes && !failed;) {
    const size_t wanted = 1 + random() % kInboxBytes;
    ssize_t count = 0;
    const bool moved = MoveOrSleep(reader_end, [&] {
      count = reader.TryRead(got.data(), wanted);
      return count > 0;
    });
    if (!moved) {
      EXPECT_TRUE(moved) << "the reader slept at " << received;
      failed = true;
      break;
    }
    if (got.compare(0, count, expected, received % kInboxBytes, count) != 0) {
      EXPECT_TRUE(false) << "wrong bytes after " << received;
      failed = true;
    }
    received += count;
  }
  writing.join();
}

RING_TEST(AFullRingTakesNothingAndAnEmptyOneGivesNothing) {
  SharedEnd a, b;
  RingStream writer(&b.segment->inbox(0), &a.segment->inbox(1), b.remote.get());
  RingStream reader(&a.segment->inbox(1), &b.segment->inbox(0), a.remote.get());
  std::string bytes = Pattern(kInboxBytes + 10, 3);
  EXPECT_EQ(reader.TryRead(bytes.data(), 1), 0);
  EXPECT_EQ(writer.TryWrite(bytes.data(), bytes.size()), kInboxBytes);
  EXPECT_EQ(writer.TryWrite(bytes.data(), 1), 0);
  std::string got(10, '\0');
  EXPECT_EQ(reader.TryRead(got.data(), 10), 10);
  EXPECT_EQ(got, bytes.substr(0, 10));
  // Wraps around.
  EXPECT_EQ(writer.TryWrite(bytes.data() + kInboxBytes, 11), 10);
  got.assign(kInboxBytes, '\0');
  EXPECT_EQ(reader.TryRead(got.data(), 2 * kInboxBytes), kInboxBytes);
  EXPECT_TRUE(got == bytes.substr(10));
}

}  // namespace
}  // namespace ring_keras
