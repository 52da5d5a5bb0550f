// A point in time after which waiting is an error.
#ifndef RING_KERAS_COMMON_DEADLINE_H_
#define RING_KERAS_COMMON_DEADLINE_H_

#include <algorithm>
#include <chrono>

namespace ring_keras {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(double timeout_s) {
    return Deadline(Clock::now() +
                    std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(timeout_s)));
  }

  bool Expired() const { return Clock::now() >= at_; }

  // Seconds left, 0 when it has passed.
  double RemainingSeconds() const {
    return std::max(0.0,
                    std::chrono::duration<double>(at_ - Clock::now()).count());
  }

  // Milliseconds left, rounded up, as poll() takes them.
  int RemainingMilliseconds() const {
    return static_cast<int>(RemainingSeconds() * 1e3 + 0.999);
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_DEADLINE_H_
