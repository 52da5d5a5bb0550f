// A collective under way on this rank.
#ifndef RING_KERAS_RUNTIME_OPERATION_H_
#define RING_KERAS_RUNTIME_OPERATION_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/task.h"
#include "tf_ops/cuda/ranges.h"
#include "tf_ops/matching/announcement.h"
#include "tf_ops/monitoring/collective_record.h"
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
    // It is in the next one: this is made up, see request_in_join.h.
    bool is_made_up = false;
    // This rank had given the operation's step up when it began.
    bool is_given_up = false;
  };

  // `name` is the member's.
  Operation(Request request, UseId use, Standing standing,
            std::shared_ptr<Member> member, NameUse& name, DoneCallback done);
  ~Operation() { ++name_.gone; }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Before Start: its caller's thread has posted it in its name's channel, and
  // `collective` is prepared, or has begun to run; `record` says when.
  void TakeOver(std::unique_ptr<Collective> collective,
                const CollectiveRecord& record) {
    collective_ = std::move(collective);
    record_ = record;
    stage_ = Stage::kPosted;
  }
  // Says in a record which collective it is: all but its step and its moments.
  static void Identify(const Request& request, const std::string& name,
                       const Communicator& communicator,
                       const Collective* collective, CollectiveRecord* record);
  // Whether so many bytes take longer than a look at the clock.
  static constexpr bool IsTimed(uint64_t nbytes) { return nbytes > 512; }
  // Starts; the task ends when the collective has, well or not.
  void Start();
  bool started() const { return task_.has_value(); }
  bool ended() const { return task_->done(); }
  const Status& status() const { return task_->result(); }
  // Gives up what is left under way after a failure, then tells the caller.
  void Finish();

  // What `job_rank`, which may be this one, has announced for it.
  void OnAnnounced(int job_rank, Announcement&& announcement);
  // Ends the wait for peers with an error of this rank alone.
  void Fail(const Status& why) { EndWait({why, Failure::Whose::kThisRank}); }
  // The same, with one to which all ranks come: none runs it.
  void Lose(const Status& why) { EndWait({why, Failure::Whose::kEveryRank}); }

  // Whether the error with which it has ended is no news to any rank: this one
  // has announced it, or all have found it in the same announcements.
  bool failed_by_agreement() const;
  // Whether its peers wait for this rank, or go on, since nothing has told them
  // of the error; and maybe count the uses of its name in another way.
  bool failed_alone() const;

  const UseId& use() const { return use_; }
  // The key of its messages; nothing before that is known.
  const std::optional<uint64_t>& data_key() const { return data_key_; }
  Communicator& communicator() const { return *communicator_; }
  Member& member() const { return *member_; }
  NameUse& name_use() { return name_; }
  bool is_join() const { return request_.kind == CollectiveKind::kJoin; }
  const Request& request() const { return request_; }
  // Of a join: one more collective to which its rank brings nothing.
  void BeginMadeUp() {
    ++request_.made_up;
    ++request_.made_up_under_way;
  }
  void EndMadeUp() { --request_.made_up_under_way; }
  bool is_made_up() const { return standing_.is_made_up; }
  bool departs() const { return request_.departs; }
  bool was_given_up() const { return standing_.is_given_up; }
  std::string description() const { return Describe(request_.kind, use_.name); }
  // Every rank is there; it waits for those with lower numbers.
  uint64_t launch_id() const { return launch_id_; }
  bool awaits_launch() const { return stage_ == Stage::kOrdered; }
  // Its tensors are in the memory of a GPU.
  bool on_device() const { return request_.device_work != nullptr; }
  // The device has been given all of it.
  bool launched() const { return stage_ == Stage::kLaunched; }
  // Behind an earlier use of its name, which says who is missing.
  bool queued() const { return stage_ == Stage::kQueued; }
  // Whether it waits for the announcement of the rank with this place.
  bool LacksAnnouncement(int rank) const {
    return stage_ == Stage::kAnnounced && !announcements_[rank].has_value();
  }
  // The job's numbers of the ranks that it still waits for, as far as is known.
  std::vector<int> MissingRanks() const;
  // Whether it waits for a word of the rank with this place that no other rank
  // can give.
  bool Needs(int rank) const;
  // Whether what it waits for comes by the control tree, where there is one.
  bool waits_for_announcements() const {
    return stage_ == Stage::kAnnounced || stage_ == Stage::kGivenUp;
  }
  // It has waited for long: lets its peers know that this rank is there.
  void TellWaiting();

  // What is known of it so far.
  CollectiveRecord Described();
  // Its caller's thread has waited for it from the beginning, if it waits.
  void StampAwaited() {
    if (request_.blocks) record_.awaited_at = record_.arrived_at;
  }
  // The program has handed it over, to somebody who is busy.
  void StampSubmitted() { record_.submitted_at = Now(); }
  // It has ended, and its caller has not been told. `alone`: its caller's
  // thread did nothing else meanwhile.
  void Record(bool alone);

  // Begins to count its age anew; the stall watch speaks at `stall_warning_s`.
  void Watch(Clock::time_point now, double stall_warning_s) {
    watched_since_ = now;
    next_stall_warning_s = stall_warning_s;
  }
  // Whether something has moved since the last call, or what comes before it
  // may move: then it does not stand still, however long it takes.
  bool HasMoved();
  double AgeSeconds(Clock::time_point now) const {
    return std::chrono::duration<double>(now - watched_since_).count();
  }
  // When the stall watch speaks next, in seconds of age.
  double next_stall_warning_s = 0;
  // Among all that this rank's program has entered, from 1; 0: this is made up.
  uint64_t number = 0;

 private:
  // In this order, but for those that it skips.
  enum class Stage {
    kQueued,     // Behind earlier uses of the name.
    kPosted,     // Looks for its peers in the name's channel.
    kAnnounced,  // Looks for them by announcements.
    kGivenUp,    // Looks for none: its step was given up.
    // They have met.
    kOrdered,   // On a device: behind others in the launch order.
    kRuns,      // Peers may read this rank's window, and send to it.
    kLaunched,  // The device has all of it, and later uses have their turn.
  };
  // Why it no longer waits for peers.
  struct Failure {
    Status why;
    enum class Whose { kThisRank, kEveryRank } whose;
  };
  // What all ranks know of each other when they have met by announcements.
  struct Meeting {
    Participants participants;
    // Whether it may serve the next use: every rank remembers an earlier use of
    // the name, and none stands in.
    bool leaves_channel = false;
  };

  Task Run();
  Status Prepare();
  bool IsMyTurn() const;
  // Whether there is a channel that can carry this collective, on every rank
  // that means the same; one that cannot is ended.
  bool HasChannel(const Status& ready);
  // Whether there is a window for it.
  bool HasRoom();
  void Post();
  // What all have posted; null if they differ. Then there is no channel more.
  Participants* TakePosts();
  // In those that it does not keep: the windows of this host's ranks.
  Status FindWindows(Participants* posted);
  // The window that a rank of this host has at `offset` of its segment.
  StatusOr<Window*> ShownBy(int rank, uint64_t offset) const;
  // `ready`: whether this rank can take part.
  Task MeetByAnnouncements(Status ready, Meeting* meeting);
  void ReadAnnounced() noexcept;
  Status TakeWindow();
  Status Announce(const Status& ready);
  // So that its peers need not wait for a rank that cannot say what it means.
  Status EncodeOwn(Announcement& own, std::string* encoded) const;
  Status Match(Meeting* meeting);
  // Ok, or what has ended a wait.
  Status WaitStatus() const;
  // When all ranks have announced it: its place among the launches.
  uint64_t LaunchTime() const;
  // Later launches need not wait for this one any more.
  void PassLaunch();
  // Says in the record which it is.
  void Identify();
  // Its peers can see that it is there.
  void StampArrived();
  // All ranks are there, `last_rank` last; negative: none came after this one.
  // `waited`: for longer than a look at the clock takes.
  void StampMatched(int last_rank, bool waited);
  // Whether a channel that it leaves is in its ranks' windows.
  bool KeepsWindow() const {
    return window_ != nullptr && communicator_->shares_memory();
  }
  // It is over, and well; what it leaves for later uses.
  void LeaveChannel(Meeting meeting);
  // It reads no more of the others' windows that it was shown for this use.
  void EndWindow(const Participants& participants);

  void EndWait(Failure failure) {
    if (!failure_.has_value()) failure_ = std::move(failure);
  }
  bool announced() const { return !announcements_.empty(); }
  // Whether peers may run what this rank has ended.
  bool PeersMayRun() const;
  bool IsMissing(int rank) const;

  Request request_;
  const UseId use_;
  const uint64_t key_;  // By which its announcements meet.
  const Standing standing_;
  const std::shared_ptr<Member> member_;
  NameUse& name_;
  const std::shared_ptr<Communicator> communicator_;
  DoneCallback done_;
  Clock::time_point watched_since_;
  uint64_t moves_ = 0;  // At the last HasMoved(); 0: there was none.
  CollectiveRecord record_;
  cuda::Range range_;

  Stage stage_ = Stage::kQueued;
  // By rank; none before this rank's own.
  std::vector<std::optional<Announcement>> announcements_;
  int announced_count_ = 0;
  int announced_last_ = -1;
  std::optional<uint64_t> data_key_;
  uint64_t launch_id_ = 0;  // In the launch order; 0 if it is not there.
  std::optional<Failure> failure_;
  bool has_told_waiting_ = false;
  Window* window_ = nullptr;  // This operation's own.
  std::unique_ptr<Collective> collective_;
  std::optional<Task> task_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_OPERATION_H_
