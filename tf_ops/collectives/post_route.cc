#include "tf_ops/collectives/post_route.h"

#include <algorithm>

#include "tf_ops/collectives/circle.h"

namespace ring_keras {
namespace {

int IndexOf(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) -
                          members.begin());
}

}  // namespace

PostRoute::PostRoute(const std::vector<std::vector<int>>& hosts, int host,
                     int rank) {
  const size_t per_host = hosts[host].size();
  size_t size = 0;
  for (const auto& ranks : hosts) size += ranks.size();
  const bool even = std::all_of(
      hosts.begin(), hosts.end(),
      [per_host](const auto& ranks) { return ranks.size() == per_host; });
  // Of one circle: by host, so that neighbours are near each other.
  std::vector<int> all;
  for (const auto& ranks : hosts) {
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  if (!even) {
    const int index = IndexOf(all, rank);
    AddCircle(all, index, 1);
    for (size_t place = 0; place < size; ++place) {
      heard_.push_back(all[(index + place) % size]);
    }
  } else {
    const int index = IndexOf(hosts[host], rank);
    AddCircle(hosts[host], index, 1);
    std::vector<int> in_same_place;
    for (const auto& ranks : hosts) in_same_place.push_back(ranks[index]);
    AddCircle(in_same_place, host, static_cast<int>(per_host));
    for (size_t place = 0; place < size; ++place) {
      const auto& ranks = hosts[(host + place / per_host) % hosts.size()];
      heard_.push_back(ranks[(index + place % per_host) % per_host]);
    }
  }
  places_.resize(size);
  for (size_t place = 0; place < size; ++place) places_[heard_[place]] = place;
}

void PostRoute::AddCircle(const std::vector<int>& members, int index,
                          int each) {
  const Circle circle(static_cast<int>(members.size()));
  for (int trip = 0; trip < circle.trips(); ++trip) {
    const int distance = circle.Distance(trip);
    trips_.push_back({members[circle.At(index, -distance)],
                      members[circle.At(index, distance)],
                      each * circle.Known(trip), each * circle.Count(trip)});
  }
}

std::optional<int> PostRoute::TripFrom(int rank) const {
  for (int trip = 0; trip < trip_count(); ++trip) {
    if (trips_[trip].from == rank) return trip;
  }
  return std::nullopt;
}

}  // namespace ring_keras
