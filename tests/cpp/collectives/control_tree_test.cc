// Words reach every rank once, whatever the hosts.
#include "tf_ops/collectives/control_tree.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

using Hosts = std::vector<std::vector<int>>;

// `counts` ranks on each host: in turn, as long as there is room.
Hosts Spread(std::vector<int> counts) {
  Hosts hosts(counts.size());
  int rank = 0;
  for (bool any = true; std::exchange(any, false);) {
    for (size_t host = 0; host < counts.size(); ++host) {
      if (counts[host]-- <= 0) continue;
      hosts[host].push_back(rank++);
      any = true;
    }
  }
  return hosts;
}

std::vector<ControlTree> TreesOf(const Hosts& hosts) {
  std::vector<std::pair<int, int>> places;  // Rank, host.
  for (size_t host = 0; host < hosts.size(); ++host) {
    for (int rank : hosts[host]) places.emplace_back(rank, host);
  }
  std::sort(places.begin(), places.end());
  std::vector<ControlTree> trees;
  for (const auto& [rank, host] : places) trees.emplace_back(hosts, host, rank);
  return trees;
}

// How often each rank hears what `origin` says.
std::vector<int> HeardOf(int origin, const std::vector<ControlTree>& trees) {
  std::vector<int> heard(trees.size());
  std::vector<std::pair<int, int>> under_way;  // From, to.
  for (int to : trees[origin].adjacent()) under_way.emplace_back(origin, to);
  while (!under_way.empty()) {
    const auto [from, to] = under_way.back();
    under_way.pop_back();
    if (++heard[to] > 1) continue;
    for (int next : trees[to].Onward(from)) under_way.emplace_back(to, next);
  }
  return heard;
}

RING_TEST(EachRankHearsEachWordOnce) {
  for (const Hosts& hosts :
       {Spread({1}), Spread({3}), Spread({1, 1}), Spread({2, 1, 3}),
        Spread(std::vector<int>(9, 1)), Spread(std::vector<int>(10, 2)),
        Spread(std::vector<int>(75, 1)),
        Spread({1, 5, 1, 1, 2, 1, 1, 1, 1, 4, 1, 1})}) {
    const std::vector<ControlTree> trees = TreesOf(hosts);
    for (int origin = 0; origin < static_cast<int>(trees.size()); ++origin) {
      std::vector<int> expected(trees.size(), 1);
      expected[origin] = 0;
      ASSERT_TRUE(HeardOf(origin, trees) == expected)
          << hosts.size() << " hosts, rank " << origin;
    }
  }
}

RING_TEST(ARankHasFewConnectionsHoweverManyHosts) {
  const Hosts hosts = Spread(std::vector<int>(4096, 1));
  for (int host : {0, 1, 8, 9, 500, 4095}) {
    const ControlTree tree(hosts, host, hosts[host].front());
    EXPECT_TRUE(tree.remote().size() <= kTreeDegree + 1) << host;
    // The higher of two ranks connects: there is one above all but the first.
    const auto above =
        std::count_if(tree.remote().begin(), tree.remote().end(),
                      [&](int other) { return other < hosts[host].front(); });
    EXPECT_EQ(above, host == 0 ? 0 : 1);
  }
}

}  // namespace
}  // namespace ring_keras
