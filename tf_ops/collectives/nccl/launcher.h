// The thread that gives the device its collectives, of all communicators of an
// engine: each communicator's one after the other, in the order in which they
// are posted.
//
// Calls of NCCL's that take part in something with other ranks return before it
// is done; then the communicator's launch is suspended, and others go on. So
// two ranks that connect two communicators in different orders do not wait for
// each other.
#ifndef RING_KERAS_COLLECTIVES_NCCL_LAUNCHER_H_
#define RING_KERAS_COLLECTIVES_NCCL_LAUNCHER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tf_ops/collectives/nccl/completion.h"
#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/launch.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras::nccl {

class Launcher {
 public:
  // `wake` is called, from threads of the launcher's, when the state of a
  // launch has changed.
  explicit Launcher(std::function<void()> wake);
  // Stops.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Starts the threads unless they run. Any thread.
  void Start();
  // Closes every communicator, then ends the threads. Only when all that was
  // posted has ended. Idempotent.
  void Stop();

  // Carries it out; it must live until it has ended.
  void Post(Launch* launch);
  // Nothing more is posted for the communicator: disconnects it.
  void Close(const std::shared_ptr<DeviceCommunicator>& communicator);
  // The communicator is broken: ends what it has on the device.
  void Abort(std::shared_ptr<DeviceCommunicator> communicator);

  // The launch thread's.
  Scheduler& scheduler() { return scheduler_; }

 private:
  // What the thread has to do for one communicator.
  struct Queue {
    std::shared_ptr<DeviceCommunicator> communicator;
    std::deque<Launch*> launches;
    bool closing = false;
    std::optional<Task> task;  // Of the first launch, or the closing.
  };

  void Main();
  // These say whether there was anything to do.
  bool TakePosted();
  bool Advance();
  Queue& QueueOf(const std::shared_ptr<DeviceCommunicator>& communicator);
  Task Carry(Launch& launch);

  const std::function<void()> wake_;
  Completion completion_;
  Scheduler scheduler_;

  std::mutex mutex_;  // Guards what follows, up to the blank line.
  std::condition_variable news_;
  std::vector<Launch*> posted_;
  std::vector<std::shared_ptr<DeviceCommunicator>> closed_;
  bool running_ = false;
  bool stopping_ = false;

  std::map<DeviceCommunicator*, Queue> queues_;  // The thread's own.
  std::thread thread_;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_LAUNCHER_H_
