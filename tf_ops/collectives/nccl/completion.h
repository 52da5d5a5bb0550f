// The thread that sees what the device has finished.
//
// It asks rather than waits: it has to notice, too, that NCCL has found an
// error, and to end communicators that are broken, while the launch thread may
// be held up in a stream that is full.
#ifndef RING_KERAS_COLLECTIVES_NCCL_COMPLETION_H_
#define RING_KERAS_COLLECTIVES_NCCL_COMPLETION_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launch.h"

namespace ring_keras::nccl {

class Completion {
 public:
  // `wake` is called when launches have ended.
  explicit Completion(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Start();
  // Only when every launch has ended.
  void Stop();

  // Ends the launch when the device has. In the order of the launches; from the
  // launch thread.
  void Watch(Launch* launch);
  // The communicator is broken: ends what it has on the device, in a thread
  // of its own. Any thread.
  void Abort(std::shared_ptr<DeviceCommunicator> communicator);

 private:
  using Clock = std::chrono::steady_clock;
  // What a device has been given, the oldest first.
  struct Flight {
    std::deque<Launch*> launches;
    // The first that the device has not ended, if its communicator is broken,
    // and since when it is that.
    const Launch* broken_first = nullptr;
    Clock::time_point broken_since;
  };

  void Main();
  // Whether any launch ended.
  bool EndFinished(int device, Flight& flight);
  // Whether the device has taken too long for a launch of a broken
  // communicator, before which nothing else is left.
  static bool IsGivenUp(const Launch& first, Flight& flight);

  const std::function<void()> wake_;
  std::mutex mutex_;  // Guards what follows, up to the blank line.
  std::condition_variable news_;
  std::vector<Launch*> watched_;
  std::vector<std::shared_ptr<DeviceCommunicator>> broken_;
  bool stopping_ = false;

  // The thread's own.
  std::map<int, Flight> flights_;  // By device.
  std::vector<std::thread> aborts_;
  std::thread thread_;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_COMPLETION_H_
