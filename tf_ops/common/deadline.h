// A point in time after which waiting is an error.
#ifndef RING_KERAS_COMMON_DEADLINE_H_
#define RING_KERAS_COMMON_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <functional>

namespace ring_keras {

// Asked now and then by a thread that waits, without a lock: true ends the
// wait. May take long.
using Interruption = std::function<bool()>;

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

  // The same for waits that `interruption`, which outlives them, may end
  // before.
  Deadline EndedBy(const Interruption* interruption) const {
    Deadline result = *this;
    result.interruption_ = interruption;
    return result;
  }

  // The same, but no later than in `timeout_s`.
  Deadline Within(double timeout_s) const {
    Deadline result = *this;
    result.at_ = std::min(at_, After(timeout_s).at_);
    return result;
  }

  bool Expired() const { return Clock::now() >= at_; }

  // To be asked after every slice of a wait; whoever is told so gives up.
  bool Interrupted() const {
    return interruption_ != nullptr && (*interruption_)();
  }

  // How long to wait at a stretch. A far deadline fits neither into poll()'s
  // argument nor into a clock's duration.
  double SliceSeconds() const {
    return std::min(RemainingSeconds(), interruption_ == nullptr ? 1000 : 0.05);
  }

  // Seconds left, 0 when it has passed.
  double RemainingSeconds() const {
    return std::max(0.0,
                    std::chrono::duration<double>(at_ - Clock::now()).count());
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
  const Interruption* interruption_ = nullptr;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_DEADLINE_H_
