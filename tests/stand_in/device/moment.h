// A point in a stream's work that others wait for.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_MOMENT_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_MOMENT_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace ring_keras::stand_in {

class Moment {
 public:
  using Clock = std::chrono::steady_clock;

  void Reach() {
    std::lock_guard lock(mutex_);
    reached_ = true;
    time_ = Clock::now();
    changed_.notify_all();
  }

  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

  bool IsReached() {
    std::lock_guard lock(mutex_);
    return reached_;
  }

  Clock::time_point Time() {
    std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  Clock::time_point time_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_MOMENT_H_
