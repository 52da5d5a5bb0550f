// Tasks of one collective that are under way together.
#ifndef RING_KERAS_COLLECTIVES_TASK_GROUP_H_
#define RING_KERAS_COLLECTIVES_TASK_GROUP_H_

#include <deque>
#include <new>
#include <utility>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras {

// Whoever spawns tasks waits for AllEnded() before the group goes, whatever has
// happened: a task must not be destroyed while the scheduler knows it. All of
// them end soon once the communicator is broken. No function throws.
class TaskGroup {
 public:
  explicit TaskGroup(Communicator& communicator)
      : communicator_(communicator) {}

  // Starts the task that `make()` makes. If it fails, for want of memory for
  // itself or later, breaks the communicator: the peers would wait for what it
  // was to do.
  template <typename Make>
  void Spawn(Make make) {
    try {
      tasks_.push_back(BreakIfFails(communicator_, make));
    } catch (const std::bad_alloc&) {
      communicator_.Break(OutOfMemory());
      return;
    }
    tasks_.back().Start();
  }

  // Tasks that have not ended, or come after one that has not.
  size_t running() {
    while (!tasks_.empty() && tasks_.front().done()) tasks_.pop_front();
    return tasks_.size();
  }

  // Awaitable.
  auto AllEnded() {
    return communicator_.UntilAlways([this] { return running() == 0; });
  }

 private:
  static Status OutOfMemory() {
    return Status(StatusCode::kResourceExhausted, "out of memory");
  }

  template <typename Make>
  static Task BreakIfFails(Communicator& communicator, Make make) {
    Status status;
    try {
      Task task = make();
      status = co_await task;
    } catch (const std::bad_alloc&) {
      status = OutOfMemory();
    }
    if (!status.ok()) communicator.Break(status);
    co_return status;
  }

  Communicator& communicator_;
  std::deque<Task> tasks_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_TASK_GROUP_H_
