#include "tf_ops/collectives/post_route.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/control_tree.h"

namespace ring_keras {
namespace {

// Of all ranks, `host_numbers[rank]` being the host of each.
std::vector<PostRoute> RoutesOf(const std::vector<int>& host_numbers) {
  const auto hosts = RanksByHost(host_numbers);
  std::vector<PostRoute> routes;
  for (int rank = 0; rank < static_cast<int>(host_numbers.size()); ++rank) {
    routes.emplace_back(hosts, HostOf(hosts, rank), rank);
  }
  return routes;
}

std::vector<std::vector<int>> Layouts() {
  std::vector<std::vector<int>> layouts;
  for (int size : {1, 2, 3, 4, 5, 7, 8, 12, 24, 65}) {
    for (int hosts : {1, 2, 3, 4, size}) {
      if (hosts > size) continue;
      std::vector<int> in_turn, in_blocks;
      for (int rank = 0; rank < size; ++rank) {
        in_turn.push_back(rank % hosts);
        in_blocks.push_back(rank * hosts / size);
      }
      layouts.push_back(in_turn);
      layouts.push_back(in_blocks);
    }
  }
  return layouts;
}

// Who is told in a trip is told what it expects: of the ranks that come next in
// its own order, by one that knows of them.
RING_TEST(EachTripTellsWhatTheOtherLacks) {
  for (const auto& layout : Layouts()) {
    const std::vector<PostRoute> routes = RoutesOf(layout);
    const int size = static_cast<int>(routes.size());
    for (int rank = 0; rank < size; ++rank) {
      const PostRoute& route = routes[rank];
      int known = 1;
      std::set<int> sources;
      for (int which = 0; which < route.trip_count(); ++which) {
        const PostRoute::Trip& trip = route.trip(which);
        const PostRoute& source = routes[trip.from];
        ASSERT_EQ(source.trip_count(), route.trip_count());
        EXPECT_EQ(source.trip(which).to, rank);
        EXPECT_EQ(trip.known, known);
        ASSERT_TRUE(trip.count <= known);
        for (int i = 0; i < trip.count; ++i) {
          EXPECT_EQ(source.heard()[i], route.heard()[known + i]);
        }
        known += trip.count;
        EXPECT_TRUE(sources.insert(trip.from).second);
        EXPECT_EQ(*route.TripFrom(trip.from), which);
      }
      EXPECT_EQ(known, size);
      std::vector<int> all = route.heard();
      EXPECT_EQ(all[0], rank);
      for (int place = 0; place < size; ++place) {
        EXPECT_EQ(route.PlaceOf(all[place]), place);
      }
      std::sort(all.begin(), all.end());
      for (int other = 0; other < size; ++other) EXPECT_EQ(all[other], other);
    }
  }
}

// Between hosts a rank hears only from those in the same place on theirs.
RING_TEST(HostsOfEqualSizeTalkPlaceByPlace) {
  std::vector<int> layout;
  for (int rank = 0; rank < 48; ++rank) layout.push_back(rank / 8);
  const std::vector<PostRoute> routes = RoutesOf(layout);
  for (int rank = 0; rank < 48; ++rank) {
    EXPECT_EQ(routes[rank].trip_count(), 3 + 3);
    for (int which = 0; which < 6; ++which) {
      const int from = routes[rank].trip(which).from;
      const bool is_near = from / 8 == rank / 8;
      EXPECT_EQ(is_near, which < 3);
      EXPECT_TRUE(is_near || from % 8 == rank % 8);
    }
  }
}

}  // namespace
}  // namespace ring_keras
