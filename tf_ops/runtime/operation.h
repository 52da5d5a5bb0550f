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
#include "tf_ops/matching/announcement.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class Operation {
 public:
  using Clock = std::chrono::steady_clock;

  // Who takes part.
  struct Standing {
    // Joins on the communicator that this rank has behind it.
    uint32_t joins = 0;
    // It is in the next one: this is made up, see stand_in.h.
    bool stands_in = false;
  };

  // `name` is the member's.
  Operation(Request request, UseId use, Standing standing,
            std::shared_ptr<Member> member, NameUse& name, DoneCallback done);

  // Starts; the task ends when the collective has, well or not.
  void Start();
  bool started() const { return task_.has_value(); }
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
  // The same, with one to which all ranks come: none runs it.
  void Lose(const Status& why) {
    lost_ |= failure_.ok();
    Fail(why);
  }

  // Whether the error with which it has ended is no news to any rank: this one
  // has announced it, or all have found it in the same announcements.
  bool failed_by_agreement() const {
    return stage_ == Stage::kAnnounced && failure_.ok() && !ran_ &&
           communicator_->status().ok();
  }

  const UseId& use() const { return use_; }
  uint64_t key() const { return key_; }
  Communicator& communicator() const { return *communicator_; }
  Member& member() const { return *member_; }
  NameUse& name_use() { return name_; }
  bool is_join() const { return request_.kind == CollectiveKind::kJoin; }
  // Of a join: one more collective to which its rank brings nothing.
  void BeginStandIn() {
    ++request_.stand_ins;
    ++request_.stand_ins_under_way;
  }
  void EndStandIn() { --request_.stand_ins_under_way; }
  bool stands_in() const { return standing_.stands_in; }
  std::string title() const { return Describe(request_.kind, use_.name); }
  // Announcements of this collective that are still to come.
  int unread_announcements() const;
  // Its place among the collectives on devices; LaunchOrder::kNoNumber while
  // that is not known, and in host memory.
  uint64_t launch_number() const;
  // Every rank is there; it waits for those with lower numbers.
  bool awaits_launch() const { return stage_ == Stage::kOrdered; }
  // The device has been given all of it.
  bool launched() const { return stage_ == Stage::kLaunched; }
  // Behind an earlier use of its name, which says who is missing.
  bool queued() const { return stage_ == Stage::kQueued; }
  // Whether it waits for the announcement of the rank with this place.
  bool LacksAnnouncement(int rank) const {
    return stage_ == Stage::kAnnounced && !announcements_[rank].has_value();
  }
  // The job's numbers of the ranks that have not joined.
  std::vector<int> MissingRanks() const;

  // Begins to count its age; the stall watch speaks at `stall_warning_s`.
  void Watch(Clock::time_point now, double stall_warning_s) {
    watched_since_ = now;
    next_stall_warning_s = stall_warning_s;
  }
  double AgeSeconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - watched_since_).count();
  }
  // When the stall watch speaks next, in seconds of age.
  double next_stall_warning_s = 0;

 private:
  // How the ranks find each other.
  enum class Stage {
    kQueued,     // Behind earlier uses of the name.
    kPosted,     // In the name's channel.
    kAnnounced,  // By messages.
    kGivenUp,    // They do not: its step was given up.
    // They have; on devices:
    kOrdered,   // Behind others in the launch order.
    kLaunched,  // The device has all of it.
  };

  Task Run();
  Status Prepare();
  bool IsMyTurn() const;
  // Later uses of the name need not wait for this one any more.
  void PassTurn();
  // Later launches need not wait for this one any more.
  void PassLaunch();
  // Whether a channel there is can carry this collective, on every rank that
  // means the same.
  bool FitsChannel() const;
  Status TakeWindow();
  // `ready`: whether this rank can take part.
  Status Announce(const Status& ready);
  StatusOr<Participants> Match();
  // The collective is over, and well; what its window becomes.
  void KeepOrEndWindow(const Participants& participants);
  bool IsMissing(int rank) const;

  Request request_;
  const UseId use_;
  const uint64_t key_;
  const Standing standing_;
  const std::shared_ptr<Member> member_;
  NameUse& name_;
  const std::shared_ptr<Communicator> communicator_;
  DoneCallback done_;
  Clock::time_point watched_since_;

  Stage stage_ = Stage::kQueued;
  std::vector<std::optional<Announcement>> announcements_;  // By rank.
  int joined_ = 0;
  Status failure_;
  bool lost_ = false;  // On every rank.
  bool ran_ = false;   // Peers may read this rank's window.
  // Every rank has used the name before, and none stands in: what the ranks
  // know of each other may serve the next use.
  bool leaves_channel_ = true;
  bool turn_passed_ = false;
  bool launch_passed_ = false;
  Window* window_ = nullptr;  // This operation's own.
  std::unique_ptr<Collective> collective_;
  std::optional<Task> task_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_OPERATION_H_
