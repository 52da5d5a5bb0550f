// A collective under way on this rank.
#ifndef RING_KERAS_RUNTIME_OPERATION_H_
#define RING_KERAS_RUNTIME_OPERATION_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/task.h"
#include "tf_ops/runtime/announcement.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class Operation {
 public:
  using Clock = std::chrono::steady_clock;

  Operation(Request request, uint32_t sequence,
            std::shared_ptr<Communicator> communicator, DoneCallback done);

  // Starts; the task ends when the collective has, well or not.
  void Start();
  bool ended() const { return task_->done(); }
  const Status& status() const { return task_->result(); }
  // Gives up what is left under way after a failure, then tells the caller.
  void Finish();

  // A peer's announcement of this collective.
  void Join(int rank, Announcement announcement);
  // Ends the wait for peers with an error of this operation alone.
  void Fail(const Status& why) {
    if (failure_.ok()) failure_ = why;
  }

  uint64_t key() const { return key_; }
  Communicator& communicator() { return *communicator_; }
  std::string title() const { return Title(own_); }
  // Whether every rank has announced itself.
  bool complete() const { return joined_ == communicator_->size(); }
  // Ranks whose announcement is still to come.
  int missing_count() const { return communicator_->size() - joined_; }
  // Their numbers in the job.
  std::vector<int> MissingRanks() const;

  double AgeSeconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - started_).count();
  }
  // When the stall watch speaks next, in seconds of age.
  double next_stall_warning_s = 0;

 private:
  Task Run();
  // Does all that needs no peer.
  Status Prepare();
  void Announce();
  StatusOr<Participants> Match();

  Request request_;
  std::shared_ptr<Communicator> communicator_;
  DoneCallback done_;
  Announcement own_;
  uint64_t key_;
  Clock::time_point started_ = Clock::now();

  std::vector<std::optional<Announcement>> announcements_;  // By rank.
  int joined_ = 0;
  Status failure_;
  bool ran_ = false;  // Peers may read this rank's window.
  Window* window_ = nullptr;
  std::unique_ptr<Collective> collective_;
  std::optional<Task> task_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_OPERATION_H_
