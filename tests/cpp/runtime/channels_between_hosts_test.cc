// Channels of ranks that do not share memory: their posts travel.
#include <atomic>
#include <barrier>
#include <latch>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/standard_error_capture.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/post_message.h"
#include "tf_ops/runtime/engine.h"
#include "tf_ops/transport/frame.h"

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

constexpr int kSize = 4;
// Each tells another in each of two trips: the ranks are a circle of 4.
constexpr size_t kTrips = 2;

Status RunAllreduce(Rank& self, const std::string& name,
                    std::vector<float>* data) {
  return self.engine->Run(Allreduce(name, *data));
}

// So that the name has a channel.
void UseTwice(Rank& self, const std::string& name, int64_t count = 1) {
  for (int use = 0; use < 2; ++use) {
    std::vector<float> data(count, 1.0f);
    ASSERT_OK(RunAllreduce(self, name, &data));
    ASSERT_EQ(data.back(), static_cast<float>(self.size));
  }
}

// What the others' hosts have, once that is all that this rank has sent.
uint64_t SentBytes(Rank& self) {
  uint64_t sent = 0;
  const bool all_is_sent = WaitFor([&] {
    bool flushed = false;
    self.engine->WithDriver([&] {
      Mesh& mesh = self.engine->mesh();
      flushed = mesh.flushed();
      sent = 0;
      for (int peer = 0; peer < self.size; ++peer) {
        if (peer == self.rank) continue;
        sent += mesh.pair(peer).sent().acknowledged_nbytes;
      }
    });
    return flushed;
  });
  return all_is_sent ? sent : 0;
}

// Blocks until the other ranks' engines have posted in what they wait for, have
// heard of all but so many ranks, and all that they say has reached the hosts
// of the others.
void AwaitPosts(const std::vector<Engine*>& engines, int but_rank,
                size_t most_missing) {
  for (int rank = 0; rank < static_cast<int>(engines.size()); ++rank) {
    if (rank == but_rank) continue;
    ASSERT_TRUE(WaitFor([&] {
      bool has_posted = false;
      engines[rank]->WithDriver([&] {
        const auto pending = engines[rank]->UnderWay(/*with_missing=*/true);
        has_posted = pending.size() == 1 && pending[0].record.arrived_at != 0 &&
                     pending[0].missing.size() <= most_missing &&
                     engines[rank]->mesh().flushed();
      });
      return has_posted;
    })) << "rank "
        << rank;
  }
}

// Ranks that know each other's engines.
void RunAcquainted(
    const RankOptions& options,
    const std::function<void(Rank&, const std::vector<Engine*>&)>& body) {
  std::vector<Engine*> engines(options.size);
  std::latch all_known(options.size);
  std::latch all_done(options.size);
  RunRanks(options, [&](Rank& self) {
    engines[self.rank] = self.engine;
    all_known.arrive_and_wait();
    body(self, engines);
    all_done.arrive_and_wait();
  });
}

// No announcement, no word that is not on the way of the data.
RING_TEST(ARepeatedAllreduceSendsItsDataAndAPostPerTrip) {
  constexpr uint64_t kUses = 50;
  constexpr uint64_t kPost = sizeof(FrameHeader) + sizeof(PostHeader);
  // Where a rank has left, nobody waits for its host to say what it has.
  std::barrier all_have_looked(kSize);
  RunRanks({kSize, "tcp", 1}, [&](Rank& self) {
    const auto sent_bytes = [&] {
      const uint64_t sent = SentBytes(self);
      all_have_looked.arrive_and_wait();
      return sent;
    };
    // One that fits into its posts: a rank sends its own value, then two.
    UseTwice(self, "small");
    uint64_t before = sent_bytes();
    for (uint64_t use = 0; use < kUses; ++use) {
      std::vector<float> data = {static_cast<float>(self.rank)};
      ASSERT_OK(RunAllreduce(self, "small", &data));
      ASSERT_EQ(data[0], 6.0f);
    }
    EXPECT_EQ(sent_bytes() - before,
              kUses * (kTrips * kPost + 3 * sizeof(float)));
    // Of 20,000 floats each rank reduces a quarter, and hands it to all.
    UseTwice(self, "large", 20000);
    before = sent_bytes();
    for (uint64_t use = 0; use < kUses; ++use) {
      std::vector<float> data(20000, static_cast<float>(self.rank));
      ASSERT_OK(RunAllreduce(self, "large", &data));
      ASSERT_EQ(data.back(), 6.0f);
    }
    EXPECT_EQ(sent_bytes() - before,
              kUses * (kTrips * kPost +
                       6 * (sizeof(FrameHeader) + 5000 * sizeof(float))))
        << "rank " << self.rank;
  });
}

// How many rows there are goes with the posts: 8 bytes of each rank.
RING_TEST(ARepeatedAllgatherSendsItsRowsAndAPostPerTrip) {
  constexpr uint64_t kUses = 50;
  constexpr uint64_t kPost = sizeof(FrameHeader) + sizeof(PostHeader);
  std::barrier all_have_looked(kSize);
  RunRanks({kSize, "tcp", 1}, [&](Rank& self) {
    const auto sent_bytes = [&] {
      const uint64_t sent = SentBytes(self);
      all_have_looked.arrive_and_wait();
      return sent;
    };
    // Returns the bytes that the rank sends each other; none for no rows.
    const auto gather = [&](uint64_t use) -> uint64_t {
      const auto rows_of = [use](int rank) { return (use + rank) % 3; };
      std::vector<float> rows(rows_of(self.rank), 1.0f);
      std::vector<float> all;
      Request request =
          testing::FloatRequest(CollectiveKind::kAllgather, "rows", rows);
      request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
        all.resize(ElementCount(shape));
        return static_cast<void*>(all.data());
      };
      EXPECT_OK(self.engine->Run(std::move(request)));
      EXPECT_EQ(all.size(), rows_of(0) + rows_of(1) + rows_of(2) + rows_of(3));
      return rows.empty() ? 0
                          : sizeof(FrameHeader) + rows.size() * sizeof(float);
    };
    gather(0);
    gather(1);
    uint64_t data = 0;
    const uint64_t before = sent_bytes();
    for (uint64_t use = 0; use < kUses; ++use) data += 3 * gather(use);
    EXPECT_EQ(sent_bytes() - before,
              kUses * (kTrips * kPost + 3 * sizeof(int64_t)) + data)
        << "rank " << self.rank;
  });
}

// What all ranks have may be more than a post can hand on.
RING_TEST(SmallDataOfManyRanksAreAnnounced) {
  constexpr int64_t kCount = 16 << 10;  // 64 KiB.
  RankOptions options{34, "tcp", 1};
  options.max_direct_peers = 2;
  options.tuning.direct_max_bytes = size_t{1} << 20;
  RunRanks(options, [](Rank& self) {
    for (int use = 0; use < 4; ++use) UseTwice(self, "many", kCount);
  });
}

RING_TEST(WhoCameLastIsKnownToAll) {
  for (int last : {0, 2}) {
    RunAcquainted({kSize, "tcp", 1}, [&](Rank& self, const auto& engines) {
      UseTwice(self, "late");
      // Without it, one more is not heard of in a circle of 4.
      if (self.rank == last) AwaitPosts(engines, last, 2);
      std::vector<float> data(1);
      ASSERT_OK(RunAllreduce(self, "late", &data));
      int said = -1;
      self.engine->WithDriver(
          [&] { said = self.engine->recorder().Recent().back().last_rank; });
      EXPECT_EQ(said, last) << "by rank " << self.rank;
    });
  }
}

// Whoever hears from rank 3 only by way of others knows who else is there.
RING_TEST(AStallNamesTheRanksThatAreMissing) {
  // Of the others one may be late, too, while they get to know each other.
  const auto warnings_of = [](const std::string& text) {
    const std::string_view named = "for rank 3 of 5";
    size_t count = 0;
    for (size_t at = 0; (at = text.find(named, at)) != text.npos; ++at) {
      ++count;
    }
    return count;
  };
  for (int max_direct_peers : {kSize + 1, 2}) {
    RankOptions options{kSize + 1, "tcp", 1};
    options.stall_warning_s = 1.0;
    options.max_direct_peers = max_direct_peers;
    const testing::StandardErrorCapture capture;
    RunRanks(options, [&](Rank& self) {
      UseTwice(self, "stalled");
      // The others wait for it, and say so.
      if (self.rank == 3) {
        WaitFor([&] { return warnings_of(capture.Text()) >= kSize; });
      }
      std::vector<float> data(1);
      ASSERT_OK(RunAllreduce(self, "stalled", &data));
    });
    const std::string text = capture.Text();
    EXPECT_TRUE(text.find("waited") != text.npos) << text;
    EXPECT_TRUE(warnings_of(text) >= kSize) << text;
  }
}

// A rank that leaves while the others are in a collective is named by those
// whom it owes a word, and they tell the rest.
RING_TEST(ARankThatLeavesIsNamedOnAll) {
  std::latch others_wait(1);
  RunAcquainted({kSize + 1, "tcp", 1}, [&](Rank& self, const auto& engines) {
    UseTwice(self, "left");
    if (self.rank == 3) {
      AwaitPosts(engines, 3, self.size);
      self.store->Leave("it has seen enough");
      self.engine->Stop();
      return;
    }
    std::vector<float> data(1);
    const Status status = RunAllreduce(self, "left", &data);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_TRUE(status.message().find("it has seen enough") !=
                std::string::npos)
        << status.message();
  });
}

RING_TEST(WhatIsNoPostEndsTheCollective) {
  std::latch both_have_channels(2);
  RunRanks({2, "tcp", 1}, [&](Rank& self) {
    UseTwice(self, "forged");
    both_have_channels.arrive_and_wait();
    if (self.rank == 1) {
      self.engine->WithDriver([&] {
        self.engine->mesh().pair(0).SendControl(FrameType::kPost, 0, "short");
      });
      return;
    }
    std::vector<float> data(1);
    const Status status = RunAllreduce(self, "forged", &data);
    EXPECT_TRUE(status.message().find("from 5 bytes") != std::string::npos)
        << status.message();
  });
}

}  // namespace
}  // namespace ring_keras
