#include "tf_ops/cuda/event.h"

#include <map>

namespace ring_keras::cuda {

Event::~Event() {
  if (pool_ != nullptr) pool_->Return(handle_);
}

Status Event::Record(StreamHandle stream) {
  return ToStatus(GetRuntime().value()->EventRecord(handle_, stream),
                  "recording an event");
}

Status Event::HoldBack(StreamHandle stream) const {
  return ToStatus(GetRuntime().value()->StreamWaitEvent(stream, handle_, 0),
                  "making a stream wait for an event");
}

StatusOr<bool> Event::IsDone() const {
  const int error = GetRuntime().value()->EventQuery(handle_);
  if (error == kErrorNotReady) return false;
  RING_KERAS_RETURN_IF_ERROR(ToStatus(error, "asking for an event"));
  return true;
}

EventPool& EventPool::Of(int device) {
  // Outlives every thread that holds an event.
  static auto* mutex = new std::mutex;
  static auto* pools = new std::map<int, EventPool>;
  std::lock_guard<std::mutex> lock(*mutex);
  return pools->try_emplace(device, device).first->second;
}

StatusOr<Event> EventPool::Take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      Event event(this, free_.back());
      free_.pop_back();
      return event;
    }
  }
  StatusOr<const RuntimeApi*> runtime = GetRuntime();
  if (!runtime.ok()) return runtime.status();
  const RuntimeApi& api = *runtime.value();
  RING_KERAS_RETURN_IF_ERROR(
      ToStatus(api.SetDevice(device_), "making an event's device current"));
  EventHandle handle = nullptr;
  RING_KERAS_RETURN_IF_ERROR(
      ToStatus(api.EventCreateWithFlags(&handle, kEventDisableTiming),
               "making an event"));
  return Event(this, handle);
}

void EventPool::Return(EventHandle handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(handle);
}

}  // namespace ring_keras::cuda
