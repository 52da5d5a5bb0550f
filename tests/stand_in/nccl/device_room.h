// How many of NCCL's kernels fit on a device at the same time.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_DEVICE_ROOM_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_DEVICE_ROOM_H_

#include <climits>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace ring_keras::stand_in {

class DeviceRoom {
 public:
  static DeviceRoom& Of(int device);

  // Waits for a place; false if `is_aborted` says so first.
  bool Take(const std::function<bool()>& is_aborted);
  void Give();

 private:
  DeviceRoom();

  std::mutex mutex_;
  std::condition_variable changed_;
  int free_ = INT_MAX;
};

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_DEVICE_ROOM_H_
