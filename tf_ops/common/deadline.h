// A point in time after which waiting is an error.
#ifndef RING_KERAS_COMMON_DEADLINE_H_
#define RING_KERAS_COMMON_DEADLINE_H_

#include <algorithm>
#include <chrono>

namespace ring_keras {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Three years hence at most: a longer time does not fit into the clock's.
  static Deadline After(double timeout_s) {
    constexpr double kLongestS = 1e8;
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(
                                           std::min(timeout_s, kLongestS))));
  }

  bool Expired() const { return Clock::now() >= at_; }

  // Seconds left, 0 when it has passed.
  double RemainingSeconds() const {
    return std::max(0.0,
                    std::chrono::duration<double>(at_ - Clock::now()).count());
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_DEADLINE_H_
