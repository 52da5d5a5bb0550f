// What a rank can know of the names at which its peers wait for it.
#include <barrier>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

const std::vector<std::pair<int, std::string>> kAskedNames = {{0, "a"},
                                                              {0, "b"}};
constexpr int kNobodyWaits = -1;

int FirstOf(Rank& self) {
  const StatusOr<int> first = self.engine->FirstAwaited(kAskedNames);
  EXPECT_OK(first.status());
  return first.ok() ? first.value() : kNobodyWaits;
}

// Announced, then in the name's channel.
void MeetByAsking(const RankOptions& options) {
  std::barrier<> both(options.size);
  RunRanks(options, [&](Rank& self) {
    for (int use = 0; use < 6; ++use) {
      const int which = use % 3 == 0 ? 0 : 1;
      std::vector<float> data(1, 1.0f);
      if (self.rank == 0) {
        EXPECT_EQ(FirstOf(self), kNobodyWaits);
      }
      both.arrive_and_wait();
      if (self.rank == 0) {
        EXPECT_TRUE(WaitFor([&] { return FirstOf(self) == which; }));
      }
      ASSERT_OK(self.engine->Run(Allreduce(kAskedNames[which].second, data)));
      EXPECT_EQ(data[0], static_cast<float>(self.size));
      both.arrive_and_wait();
    }
  });
}

RING_TEST(FirstAwaitedInSharedMemory) { MeetByAsking({}); }

RING_TEST(FirstAwaitedBetweenHosts) {
  RankOptions options;
  options.hosts = 2;
  MeetByAsking(options);
}

// Nobody else shall enter what this rank is about to.
RING_TEST(FirstAwaitedNotWhatThisRankHasEntered) {
  std::barrier<> both(2);
  RunRanks({}, [&](Rank& self) {
    std::vector<float> data(1, 1.0f);
    std::promise<Status> ended;
    if (self.rank == 0) {
      self.engine->Submit(Allreduce("a", data), [&](const Status& status) {
        ended.set_value(status);
      });
      EXPECT_EQ(FirstOf(self), kNobodyWaits);
    }
    both.arrive_and_wait();
    if (self.rank == 1) {
      EXPECT_TRUE(WaitFor([&] { return FirstOf(self) == 0; }));
      ASSERT_OK(self.engine->Run(Allreduce("a", data)));
    } else {
      EXPECT_OK(ended.get_future().get());
      EXPECT_EQ(FirstOf(self), kNobodyWaits);
    }
    both.arrive_and_wait();
  });
}

RING_TEST(FirstAwaitedOfNoCommunicatorIsAnError) {
  RunRanks({}, [&](Rank& self) {
    EXPECT_FALSE(self.engine->FirstAwaited({{7, "a"}}).ok());
  });
}

}  // namespace
}  // namespace ring_keras
