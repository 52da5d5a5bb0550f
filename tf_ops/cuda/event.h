// Points in a stream that other streams, or the host, can wait for.
#ifndef RING_KERAS_CUDA_EVENT_H_
#define RING_KERAS_CUDA_EVENT_H_

#include <mutex>
#include <utility>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::cuda {

class EventPool;

// A point in a stream; movable. Goes back to its pool when it is destroyed,
// which is safe at once: what streams were told to wait for stays what it was.
class Event {
 public:
  Event() = default;  // None: may only be destroyed or assigned to.
  Event(Event&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  RING_KERAS_EXPORT ~Event();

  EventHandle handle() const { return handle_; }

  // Becomes the point after all that `stream`, of the pool's device, was given
  // so far.
  RING_KERAS_EXPORT Status Record(StreamHandle stream);

  // What `stream`, of any device, is given from here on runs after the point.
  // Does not block.
  RING_KERAS_EXPORT Status HoldBack(StreamHandle stream) const;

  // Whether the device has passed the point.
  RING_KERAS_EXPORT StatusOr<bool> IsDone() const;

 private:
  friend class EventPool;
  Event(EventPool* pool, EventHandle handle) : pool_(pool), handle_(handle) {}

  EventPool* pool_ = nullptr;
  EventHandle handle_ = nullptr;
};

// Events of a device, kept for the next who needs one: making an event takes a
// lock of the driver's. Without times, which makes them faster. Any thread.
class EventPool {
 public:
  // The pool of the device, which lives as long as the process.
  RING_KERAS_EXPORT static EventPool& Of(int device);

  explicit EventPool(int device) : device_(device) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // A free event, or a new one, for which the pool's device becomes the calling
  // thread's current one.
  RING_KERAS_EXPORT StatusOr<Event> Take();

 private:
  friend class Event;
  void Return(EventHandle handle);

  const int device_;
  std::mutex mutex_;
  std::vector<EventHandle> free_;
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_EVENT_H_
