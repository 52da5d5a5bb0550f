#include "tests/stand_in/nccl/device_room.h"

#include <chrono>
#include <cstdlib>
#include <map>

namespace ring_keras::stand_in {

DeviceRoom::DeviceRoom() {
  const char* text = std::getenv("STAND_IN_NCCL_KERNELS");
  if (text != nullptr) free_ = std::atoi(text);
}

DeviceRoom& DeviceRoom::Of(int device) {
  static std::mutex mutex;
  // Never destroyed, as the streams.
  static auto* rooms = new std::map<int, DeviceRoom*>;
  std::lock_guard lock(mutex);
  DeviceRoom*& room = (*rooms)[device];
  if (room == nullptr) room = new DeviceRoom;
  return *room;
}

bool DeviceRoom::Take(const std::function<bool()>& is_aborted) {
  std::unique_lock lock(mutex_);
  while (free_ == 0) {
    if (is_aborted()) return false;
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
  --free_;
  return true;
}

void DeviceRoom::Give() {
  std::lock_guard lock(mutex_);
  ++free_;
  changed_.notify_one();
}

}  // namespace ring_keras::stand_in
