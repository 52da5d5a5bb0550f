// Queues of work, each done in order by a thread of its own.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_STREAM_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "tests/stand_in/device/moment.h"
#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

class RING_KERAS_EXPORT Stream {
 public:
  using Work = std::function<void()>;

  // `blocking`: ordered with the device's default stream.
  static std::shared_ptr<Stream> Start(int device, bool blocking);

  int device() const { return device_; }

  void Enqueue(Work work);

  // Reached when all that the stream was given before is done.
  std::shared_ptr<Moment> Mark();

  bool IsIdle();

  // Nothing more comes: the thread ends after what is queued.
  void End();

 private:
  friend struct DefaultStreams;

  Stream(int device, bool blocking, bool is_default)
      : device_(device), blocking_(blocking), is_default_(is_default) {}
  void StartThread(std::shared_ptr<Stream> self);
  void Run();
  void Push(Work work, std::shared_ptr<Moment> moment = nullptr);
  void FollowDefaultStream();

  const int device_;
  const bool blocking_;
  const bool is_default_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Item {
    Work work;
    std::shared_ptr<Moment> moment;  // Reached after the work, if any.
  };
  std::deque<Item> queue_;
  bool working_ = false;
  bool ended_ = false;
};

// The stream of that handle: null and 1 are the current device's default one.
// None if the handle is unknown.
RING_KERAS_EXPORT std::shared_ptr<Stream> FindStream(void* handle);

RING_KERAS_EXPORT void* AddStream(std::shared_ptr<Stream> stream);

// A CudaError.
RING_KERAS_EXPORT int DestroyStream(void* handle);

// Waits for everything that the device was given.
RING_KERAS_EXPORT void SynchronizeDevice(int device);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_STREAM_H_
