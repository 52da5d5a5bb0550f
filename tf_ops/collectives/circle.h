// Ways around a circle of members by which each hears from all in as few trips
// as there can be: as many as the logarithm of their number, rounded up.
//
// After trips 0 to t a member knows of itself and the Known(t + 1) - 1 members
// after it: in trip t it has heard from the one that is Distance(t) on, about
// that one and the Count(t) - 1 after it. Source: Traff 2024, arXiv:2410.14234.
#ifndef RING_KERAS_COLLECTIVES_CIRCLE_H_
#define RING_KERAS_COLLECTIVES_CIRCLE_H_

#include <algorithm>
#include <array>
#include <bit>

#include "tf_ops/collectives/partition.h"

namespace ring_keras {

class Circle {
 public:
  explicit Circle(int size)
      : size_(size), trips_(std::bit_width(static_cast<unsigned>(size - 1))) {}

  int size() const { return size_; }
  int trips() const { return trips_; }
  // How many members one knows of before the trip, itself among them.
  int Known(int trip) const {
    const int left = trips_ - trip;
    return (size_ + (1 << left) - 1) >> left;
  }
  int Distance(int trip) const { return Known(trip); }
  int Count(int trip) const { return Known(trip + 1) - Known(trip); }
  // The member so far on from `from`; backwards, if negative.
  int At(int from, int distance) const {
    return (from + distance + size_) % size_;
  }
  // The member `first`, which may be a turn too far, and those after it,
  // `count` in all: two ranges if they go past the last one and on with the
  // first. One of none is empty.
  std::array<Range, 2> Members(int first, int count) const {
    first %= size_;
    const int before_end = std::min(count, size_ - first);
    return {Range{static_cast<size_t>(first),
                  static_cast<size_t>(first + before_end)},
            Range{0, static_cast<size_t>(count - before_end)}};
  }

 private:
  int size_;
  int trips_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_CIRCLE_H_
