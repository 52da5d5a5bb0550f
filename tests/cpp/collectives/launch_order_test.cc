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
  const LaunchOrder::Entry first = order.Enter();
  const LaunchOrder::Entry second = order.Enter();
  EXPECT_TRUE(first.time < second.time);
  EXPECT_TRUE(LaunchOrder::kNoTime < first.time);
  EXPECT_FALSE(order.IsNext(first.id));  // Not all of its ranks are there.
  order.Settle(second.id, second.time, 3);
  EXPECT_FALSE(order.IsNext(second.id));
  EXPECT_EQ(*order.next(), first.id);
  order.Settle(first.id, first.time, 7);
  EXPECT_TRUE(order.IsNext(first.id));
  order.Pass(first.id);
  EXPECT_TRUE(order.IsNext(second.id));
  order.Pass(second.id);
  order.Pass(second.id);
  EXPECT_FALSE(order.IsNext(second.id));
}

RING_TEST(AnotherRanksProposalMayComeBehind) {
  LaunchOrder order;
  const uint64_t first = order.Enter().id;
  const uint64_t second = order.Enter().id;
  order.Settle(first, 9, 1);
  order.Settle(second, 2, 2);
  EXPECT_TRUE(order.IsNext(second));
  EXPECT_EQ(order.Enter().time, 10u);
  order.Pass(second);
  EXPECT_TRUE(order.IsNext(first));
}

RING_TEST(KeysDecideBetweenEqualTimes) {
  LaunchOrder order;
  const uint64_t first = order.Enter().id;
  const uint64_t second = order.Enter().id;
  order.Settle(first, 4, 8);
  order.Settle(second, 4, 5);
  EXPECT_TRUE(order.IsNext(second));
}

RING_TEST(WhatIsNotSettledComesFirst) {
  LaunchOrder order;
  const LaunchOrder::Entry first = order.Enter();
  const uint64_t second = order.Enter().id;
  order.Settle(second, first.time, 1);
  EXPECT_FALSE(order.IsNext(second));
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
      std::map<int, uint64_t> ids;  // By collective.
      std::map<uint64_t, int> collectives;
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
        const LaunchOrder::Entry entry = rank.order.Enter();
        rank.ids[entered] = entry.id;
        rank.collectives[entry.id] = entered;
        proposed.push_back(entry.time);
        if (proposed.size() == members[entered].size()) {
          for (int other : members[entered]) {
            ranks[other].complete.push_back(entered);
          }
        }
      } else if (random() % 2 == 0 && !rank.complete.empty()) {
        const auto at = rank.complete.begin() + random() % rank.complete.size();
        const auto& proposed = proposals[*at];
        rank.order.Settle(rank.ids[*at],
                          *std::max_element(proposed.begin(), proposed.end()),
                          1000 + *at);
        rank.complete.erase(at);
      } else if (const auto next = rank.order.next();
                 next.has_value() && rank.order.IsNext(*next)) {
        rank.order.Pass(*next);
        rank.launched.push_back(rank.collectives[*next]);
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
