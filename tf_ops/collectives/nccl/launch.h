// One collective on its way through the device.
#ifndef RING_KERAS_COLLECTIVES_NCCL_LAUNCH_H_
#define RING_KERAS_COLLECTIVES_NCCL_LAUNCH_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "tf_ops/collectives/nccl/stream_work.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras::nccl {

class DeviceCommunicator;

class Launch {
 public:
  enum class State {
    kQueued,
    kLaunched,  // The device has been given all of it.
    kEnded,     // Nothing of it is left on the device; or it failed.
  };

  Launch(DeviceCommunicator& communicator, StreamWork& work,
         const std::function<void()>& launched)
      : communicator_(communicator), work_(work), launched_(launched) {}
  virtual ~Launch() = default;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  DeviceCommunicator& communicator() { return communicator_; }
  StreamWork& work() { return work_; }

  // In the launch thread: gives the device what it has to do, in the
  // communicator's stream.
  virtual Task Enqueue() = 0;
  // How the communicator's ranks find each other, if they have not yet.
  virtual std::string unique_id() const = 0;

  // Its owner may destroy it when it has ended, not before.
  State state() const { return state_.load(); }
  // Of one that has ended.
  const Status& outcome() const { return outcome_; }

  // The launch thread.
  void SetLaunched() {
    if (launched_) launched_();
    state_.store(State::kLaunched);
  }
  void Fail(Status why) { outcome_ = std::move(why); }
  // The completion thread. The first failure stays.
  void SetEnded(const Status& status) {
    if (outcome_.ok()) outcome_ = status;
    state_.store(State::kEnded);
  }

 private:
  DeviceCommunicator& communicator_;
  StreamWork& work_;
  const std::function<void()>& launched_;
  Status outcome_;
  std::atomic<State> state_{State::kQueued};
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_LAUNCH_H_
