// The order in which a rank gives its device the collectives.
#include "tf_ops/collectives/launch_order.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(OneIsNextWhenAllEarlierHavePassed) {
  LaunchOrder order;
  EXPECT_FALSE(order.next().has_value());
  const uint64_t first = order.Enter(7);
  const uint64_t second = order.Enter(3);
  EXPECT_TRUE(first < second);
  EXPECT_TRUE(LaunchOrder::kNoTime < first);
  EXPECT_FALSE(order.IsNext(7));  // Not all of its ranks are there.
  order.Settle(3, second);
  EXPECT_FALSE(order.IsNext(3));
  EXPECT_EQ(*order.next(), 7u);
  order.Settle(7, first);
  EXPECT_TRUE(order.IsNext(7));
  order.Pass(7);
  EXPECT_TRUE(order.IsNext(3));
  order.Pass(3);
  order.Pass(3);
  EXPECT_FALSE(order.IsNext(3));
}

RING_TEST(AnotherRanksProposalMayComeBehind) {
  LaunchOrder order;
  order.Enter(1);
  order.Enter(2);
  order.Settle(1, 9);
  order.Settle(2, 2);
  EXPECT_TRUE(order.IsNext(2));
  EXPECT_EQ(order.Enter(3), 10u);
  order.Pass(2);
  EXPECT_TRUE(order.IsNext(1));
}

RING_TEST(KeysDecideBetweenEqualTimes) {
  LaunchOrder order;
  order.Enter(8);
  order.Enter(5);
  order.Settle(8, 4);
  order.Settle(5, 4);
  EXPECT_TRUE(order.IsNext(5));
}

// Ranks that enter the collectives of overlapping sets in any order, and learn
// in any order that all are there, launch what they share in one order, and
// launch it all.
RING_TEST(RanksLaunchWhatTheyShareInOneOrder) {
  constexpr int kRanks = 4;
  constexpr int kCollectives = 30;
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<int>> members(kCollectives);
    for (auto& ranks : members) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (random() % 2 == 0) ranks.push_back(rank);
      }
    }
    struct Rank {
      LaunchOrder order;
      std::vector<int> to_enter;
      std::vector<int> complete;
      std::vector<int> launched;
    };
    std::vector<Rank> ranks(kRanks);
    size_t wanted = 0;
    for (int i = 0; i < kCollectives; ++i) {
      for (int rank : members[i]) ranks[rank].to_enter.push_back(i);
      wanted += members[i].size();
    }
    for (Rank& rank : ranks) {
      std::shuffle(rank.to_enter.begin(), rank.to_enter.end(), random);
    }
    std::map<int, std::vector<uint64_t>> proposals;
    size_t launched = 0;
    for (int turn = 0; turn < 100'000 && launched < wanted; ++turn) {
      Rank& rank = ranks[random() % kRanks];
      if (random() % 2 == 0 && !rank.to_enter.empty()) {
        const int entered = rank.to_enter.back();
        rank.to_enter.pop_back();
        auto& proposed = proposals[entered];
        proposed.push_back(rank.order.Enter(entered));
        if (proposed.size() == members[entered].size()) {
          for (int other : members[entered]) {
            ranks[other].complete.push_back(entered);
          }
        }
      } else if (random() % 2 == 0 && !rank.complete.empty()) {
        const auto at = rank.complete.begin() + random() % rank.complete.size();
        const auto& proposed = proposals[*at];
        rank.order.Settle(*at,
                          *std::max_element(proposed.begin(), proposed.end()));
        rank.complete.erase(at);
      } else if (const auto next = rank.order.next();
                 next.has_value() && rank.order.IsNext(*next)) {
        rank.order.Pass(*next);
        rank.launched.push_back(static_cast<int>(*next));
        ++launched;
      }
    }
    ASSERT_EQ(launched, wanted);
    for (const Rank& a : ranks) {
      for (const Rank& b : ranks) {
        const auto shared = [](const Rank& of, const Rank& with) {
          std::vector<int> both;
          for (int i : of.launched) {
            if (std::count(with.launched.begin(), with.launched.end(), i) > 0) {
              both.push_back(i);
            }
          }
          return both;
        };
        EXPECT_EQ(shared(a, b), shared(b, a));
      }
    }
  }
}

}  // namespace
}  // namespace ring_keras
