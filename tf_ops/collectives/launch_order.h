// In which order a communicator's collectives are given to the device.
//
// Devices need one order, the same on every rank. It is the order in which the
// communicator's first rank announces its collectives: each carries its number
// in the announcement, which every rank has anyway when it launches.
#ifndef RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_
#define RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_

#include <cstdint>
#include <set>

namespace ring_keras {

// Not thread-safe: the driver's.
class LaunchOrder {
 public:
  static constexpr uint64_t kNoNumber = ~uint64_t{0};

  // The first rank: the number of the collective that it announces now.
  uint64_t Assign() { return assigned_++; }

  // Whether all with lower numbers have passed.
  bool IsNext(uint64_t number) const { return number == next_; }
  uint64_t next() const { return next_; }

  // It is launched, or never will be. Each number passes once, in any order.
  void Pass(uint64_t number) {
    passed_.insert(number);
    while (passed_.erase(next_) > 0) ++next_;
  }

 private:
  uint64_t assigned_ = 0;
  uint64_t next_ = 0;
  std::set<uint64_t> passed_;  // Above next_.
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_
