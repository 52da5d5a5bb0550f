// The way by which each rank hears of all others' posts in few trips.
//
// Where all hosts have as many ranks: those of a host hear from each other
// first, then from those in the same place on other hosts, who know their
// host's by then. These are the connections that lanes use by halving (lane.h).
// Else all ranks are one circle.
#ifndef RING_KERAS_COLLECTIVES_POST_ROUTE_H_
#define RING_KERAS_COLLECTIVES_POST_ROUTE_H_

#include <optional>
#include <vector>

namespace ring_keras {

class PostRoute {
 public:
  struct Trip {
    int to;
    int from;
    int known;  // Ranks of which one knows before, itself among them.
    int count;  // Of how many more it hears.
  };

  // `hosts`: the ranks by host; `host`: that of `rank`.
  PostRoute(const std::vector<std::vector<int>>& hosts, int host, int rank);

  int trip_count() const { return static_cast<int>(trips_.size()); }
  const Trip& trip(int which) const { return trips_[which]; }
  // The trip in which this rank hears from `rank`; none: it does not.
  std::optional<int> TripFrom(int rank) const;
  // All ranks, in the order in which this one hears of them, itself first.
  const std::vector<int>& heard() const { return heard_; }
  // The place of `rank` in that.
  int PlaceOf(int rank) const { return places_[rank]; }

 private:
  // Adds the trips of a circle of `members`, of whom this one is at `index`,
  // and each of whom knows of `each` ranks.
  void AddCircle(const std::vector<int>& members, int index, int each);

  std::vector<Trip> trips_;
  std::vector<int> heard_;
  std::vector<int> places_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_POST_ROUTE_H_
