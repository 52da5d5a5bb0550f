// Events: which point of which stream was recorded last.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_EVENT_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_EVENT_H_

#include <memory>
#include <mutex>
#include <utility>

#include "tests/stand_in/device/moment.h"

namespace ring_keras::stand_in {

class Event {
 public:
  Event(int device, bool is_timed) : device_(device), is_timed_(is_timed) {}

  int device() const { return device_; }
  bool is_timed() const { return is_timed_; }

  void Record(std::shared_ptr<Moment> moment) {
    std::lock_guard lock(mutex_);
    moment_ = std::move(moment);
  }

  // Null if it was never recorded.
  std::shared_ptr<Moment> Recorded() {
    std::lock_guard lock(mutex_);
    return moment_;
  }

 private:
  const int device_;
  const bool is_timed_;
  std::mutex mutex_;
  std::shared_ptr<Moment> moment_;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_EVENT_H_
