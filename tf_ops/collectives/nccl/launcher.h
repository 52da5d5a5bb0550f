// The thread that gives the device its collectives, of all communicators of an
// engine: one after the other, in the order in which they are posted, in one
// stream. That order is the same on all ranks (launch_order.h), so what waits
// here, or on the device, for a peer waits for what the peer comes to.
//
// Calls of NCCL's that take part in something with other ranks return before it
// is done; then the launch is suspended, and those behind it wait, while
// communicators that nothing more is posted for are closed.
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
#include "tf_ops/cuda/stream.h"

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

  // The rest is the launch thread's.
  Scheduler& scheduler() { return scheduler_; }
  // The one for collectives on a device, until Stop().
  StatusOr<StreamHandle> StreamOf(int device);

 private:
  struct Queued {
    DeviceCommunicator* communicator;
    Launch* launch;  // Not to be touched once it has been carried out.
  };
  // A communicator that has been used.
  struct Known {
    std::shared_ptr<DeviceCommunicator> communicator;
    bool is_closing = false;
    std::optional<Task> closing;
  };

  void Main();
  // These say whether there was anything to do.
  bool TakePosted();
  bool AdvanceLaunches();
  bool AdvanceClosings();
  bool HasQueued(const DeviceCommunicator* communicator) const;
  // Whether a coroutine of the thread's is under way.
  bool Waits() const;
  Known& Know(const std::shared_ptr<DeviceCommunicator>& communicator);
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

  // The thread's own.
  std::deque<Queued> queue_;
  std::optional<Task> launching_;  // The first of them.
  std::map<DeviceCommunicator*, Known> known_;
  std::map<int, std::unique_ptr<cuda::Stream>> streams_;  // By device.

  std::thread thread_;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_LAUNCHER_H_
