// Carries out this rank's collectives.
//
// One thread at a time drives: it takes requests, moves bytes, resumes
// algorithms. Run() lets the calling thread drive, so that a blocking call
// costs no thread switch; Submit() leaves it to the engine's own thread, which
// sleeps while there is nothing to do.
#ifndef RING_KERAS_RUNTIME_ENGINE_H_
#define RING_KERAS_RUNTIME_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/common/store.h"
#include "tf_ops/monitoring/dump_budget.h"
#include "tf_ops/monitoring/dump_writer.h"
#include "tf_ops/runtime/idle_backoff.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/request.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

struct EngineOptions {
  double collective_timeout_s = 600;
  double stall_warning_s = 60;
  // How long a blocking call looks for its peers' data, offering the core to
  // others, before it sleeps.
  double drive_alone_s = 1e-3;
  // "rank 1 (host node7, pid 4711)" for every rank of the job.
  std::vector<std::string> rank_names;
  // See InitOptions.
  std::string trace_dir;
};

class Engine {
 public:
  Engine(const EngineOptions& options, std::unique_ptr<Mesh> mesh);
  // Stops, then joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes part in a collective; `done` gets the outcome. For about
  // `drive_for_s` the calling thread does the work, as long as nothing else is
  // under way.
  void Submit(Request request, DoneCallback done, double drive_for_s = 0);
  // The same, and waits; this thread does the work where it can.
  Status Run(Request request);

  // `ranks` ascending; this rank need not be among them. `id` is new.
  void AddCommunicator(int id, std::vector<int> ranks,
                       const Tuning& tuning = {});
  void RemoveCommunicator(int id);
  // Connects the GPUs of a communicator's ranks by splitting what connects
  // those of all ranks. Every rank of the job calls it, after AddCommunicator;
  // this one's tensors are on `device`. If a rank cannot do that, all are Ok,
  // and connect by themselves when they first need it. Errors: what ends
  // collectives of all ranks.
  Status SplitDevices(int id, int device);
  // Of all communicators there are. Only while nothing is pending.
  void SetTuning(const Tuning& tuning);

  // This rank's program gives up waiting on a communicator, which breaks if
  // anything that has been entered by now is still pending. From any thread.
  static constexpr int kEveryCommunicator = -1;
  void Interrupt(int communicator_id);

  // Another rank ended. From any thread.
  void OnRankEvent(const RankEvent& event);

  // Runs `look` while nobody drives but it, so that it may read what is the
  // driver's; returns when it has. It must be quick. From any thread that is no
  // driver.
  void WithDriver(const std::function<void()>& look) noexcept;
  Recorder& recorder() { return recorder_; }
  // Writes down what is under way, on every rank, and waits some seconds for
  // this one's. From any thread that is no driver.
  void Dump(const std::string& why);
  // Those under way, as far as they have come; with the driver. `with_missing`:
  // and for whom each waits, which takes a look at every rank.
  std::vector<PendingCollective> UnderWay(bool with_missing) const;

  // Waits until the peers have taken all that this rank has for them, at most
  // for so long; whether they have. From any thread.
  bool AwaitSent(double timeout_s);
  // Ends what is pending with Aborted and takes nothing more. From any thread.
  void Stop();
  // Collectives that have not ended.
  int pending_count() const;
  // The first connection to a peer that this rank has seen break while the peer
  // was alive, in words; empty if there is none. From any thread.
  std::string broken_link() const;
  Mesh& mesh() { return *mesh_; }

 private:
  using Clock = Operation::Clock;
  struct Interrupted {
    int communicator_id;
    uint64_t last;  // The operation that was entered last by then.
  };
  // Of WithDriver.
  struct Look {
    const std::function<void()>* function;
    bool done = false;
  };
  // A join under way.
  struct Joining {
    std::shared_ptr<Member> member;
    Operation* operation = nullptr;
    // Holds it until this rank's others have ended.
    std::unique_ptr<Operation> waiting;
  };

  // For tensors on a GPU: what takes too long for the driver. Without mutex_.
  void PrepareDevice(Request& request);
  // The caller holds mutex_. On an error nothing is taken.
  StatusOr<std::unique_ptr<Operation>> Accept(Request& request,
                                              DoneCallback& done);
  // Of this rank's communicator `id`; null if there is none. The caller holds
  // mutex_.
  std::shared_ptr<nccl::DeviceCommunicator> DeviceOf(int id) const;
  // This rank's part in communicator `id`; null if it has none.
  std::shared_ptr<Member> MemberOf(int id) const;
  // Leaves it to the driver. The caller holds mutex_.
  void Enqueue(std::unique_ptr<Operation> operation) noexcept;
  // What the driver waits for may have happened. Any thread.
  void WakeDriver();
  // Whether the operation is all there is, so that its caller's thread may
  // carry it out. The caller holds mutex_.
  bool IsAlone(const Operation& operation) const;
  // Drives this operation alone for a while, until something else comes up.
  // Unless it has ended then, it is the first of accepted_, and has started.
  // The caller holds `lock`, and is the driver from here on.
  void TryAlone(std::unique_ptr<Operation> operation, double drive_for_s,
                std::unique_lock<std::mutex>& lock) noexcept;
  void ThreadMain();
  void StopDriving();
  // Drives until `condition()`; the caller has set driving_.
  template <typename Condition>
  void DriveUntil(Condition condition) noexcept;

  // Everything below runs on the driving thread.
  bool Poll();
  bool TakeAccepted();
  // It becomes one of operations_, and starts unless it has.
  void Adopt(std::unique_ptr<Operation> adopted);
  // The same for a join, whose rank has not announced it yet.
  void BeginJoin(std::unique_ptr<Operation> operation);
  // Does a joined rank's part in what its peers have announced.
  bool ServeJoins();
  bool AnswerPeers(const Joining& joining);
  // Null if it is not yet that use's turn.
  std::unique_ptr<Operation> MakeUp(const Joining& joining,
                                    const Announcement& peer);
  // Announces the join; once none of this rank's operations is left.
  bool AnnounceJoin(Joining& joining);
  // The join under way on a communicator, if there is one.
  Joining* JoiningOn(const Communicator& communicator);
  // After another operation there.
  void AfterJoinedUse(const Joining& joining, Operation& ended);
  // Before its caller is told.
  void FinishJoin(const Operation& operation);
  // Clears up after an operation, and tells its caller; `alone` as for
  // Operation::Record.
  void End(Operation& operation, bool alone);
  void BreakIfLost(Communicator& communicator);
  bool TakeEvents();
  void TakeInterrupts();
  void TakeLooks();
  // Who has a rank write down what is under way.
  enum class Asker : uint8_t { kEngine, kThisRank, kPeer };
  // Has it written to the trace directory, with the stacks of all threads, and
  // the other ranks do the same, who know if a peer asks.
  void WriteDump(DumpCause cause, const std::string& why, Asker asker);
  // What this rank does while it has nothing to do.
  void LookAround();
  void BreakInterrupted(Communicator& communicator, const std::string& pending);
  bool FinishEnded();
  void HandleControl(int job_rank, FrameType type, uint64_t key,
                     std::string payload);
  void HandleAnnouncement(int job_rank, uint64_t key, const std::string& bytes);
  void HandleAbort(int communicator_id, const std::string& bytes);
  void HandleRelayed(int job_rank, int communicator_id,
                     const std::string& bytes);
  // Of an announcement whose operation has ended here, or never begins.
  void CancelEnded(Communicator& communicator,
                   const Announcement& announcement);
  void HandleLost(const RankEvent& event);
  // Nothing that `job_rank` and this one share works any more.
  void BreakSharedWith(int job_rank, const Status& why);

  // Whether a peer's announcement comes too late for an operation of this
  // rank's in a step to wait for it. See StepLedger.
  bool IsPast(const Member& member, const UseId& use) const;
  // Whether an operation in a step may still be announced. The caller holds
  // mutex_.
  bool WillAnnounce(const UseId& use) const;
  // Ends the operations in steps that can find no partners.
  void FailLostSteps(Member& member);
  // The same for what has begun to wait for announcements in this turn.
  void FailNewLostWaits();
  // Gives the member's steps up, and tells the peers.
  void GiveUpSteps(Member& member, GivenUp given_up);
  void HandleGivenUp(int job_rank, int communicator_id,
                     const std::string& bytes);
  // An operation in a step has ended; its caller has not been told.
  void BeforeEndInStep(Operation& operation);
  // A name of steps that were given up meets by announcements next.
  void EndChannelOfGivenUp(Operation& ended);
  // What came early for steps that this rank will not enter any more.
  void DropPastSteps(Member& member, uint64_t step);

  // Ends operations that wait for ranks that left.
  void FailWaitsForLeft();
  void FailIfCutOff(Operation& operation);
  // Deadlines and the stall watch.
  void Watch();
  // Connections that were needed, and will not be made any more.
  void EndLinksToLeft(Clock::time_point now);
  // Connections that ended: without a word of the store's, or while an
  // operation needs them.
  void WatchConnections(Clock::time_point now);
  // What ended the connection to `rank`; the same words on both ends.
  std::string DescribeBrokenLink(int rank);
  std::string AdviceAbout(const Pair& pair) const;
  // `rank` left by its own will, and all that it sent has been read.
  void FailUsesOfLeft(int rank, const RankEvent& event);
  void WarnOfStall(Operation& operation, double age_s);
  // Where ranks that it waits for wait for this one.
  std::string DescribeChannelsAhead(const std::vector<int>& missing);
  // Tells the other ranks, once, that the communicator is broken.
  void TellPeers(Communicator& communicator, const Status& why);
  std::string DescribeMissing(const Operation& operation) const;
  // What holds up the launch of collectives for which all ranks are there.
  std::string DescribeEarlierLaunch() const;

  const std::string& own_name() const {
    return options_.rank_names[mesh_->rank()];
  }

  const EngineOptions options_;
  std::unique_ptr<Mesh> mesh_;
  Scheduler scheduler_;
  nccl::Launcher launcher_;
  Matcher matcher_;    // The driver's.
  Recorder recorder_;  // The same.

  mutable std::mutex mutex_;       // Guards what follows, up to the blank line.
  std::condition_variable work_;   // For the thread: there is work to drive.
  std::condition_variable ended_;  // For Run(): requests ended, or no driver.
  bool driving_ = false;
  bool stopping_ = false;
  uint64_t entered_ = 0;  // Requests so far.
  int active_ = 0;        // Those that have not ended.
  // Requests that the driver has not seen.
  std::vector<std::unique_ptr<Operation>> accepted_;
  std::vector<RankEvent> events_;
  std::vector<Interrupted> interrupted_;
  std::vector<Look*> looks_;
  std::map<int, std::shared_ptr<Member>> communicators_;
  // Communicators that were removed; their end is the driver's.
  std::vector<std::shared_ptr<Member>> removed_;
  std::string broken_link_;

  // accepted_, events_, interrupted_ or looks_ is not empty.
  std::atomic<bool> has_news_{false};
  std::atomic<bool> asleep_{false};

  // The driver's own.
  LaunchOrder launch_order_;
  std::vector<std::unique_ptr<Operation>> operations_;
  // Neither accepted_ any more nor one of these yet, while others start, which
  // read messages; null once it is. And the one that starts alone.
  std::vector<std::unique_ptr<Operation>> adopting_;
  Operation* alone_ = nullptr;
  std::map<int, std::pair<RankEvent, Clock::time_point>> left_;
  std::map<int, Status> lost_;  // By rank; -1 is the store.
  std::map<int, Clock::time_point> closed_since_;
  std::map<int, bool> told_;  // Communicators whose ranks know it is broken.
  DumpBudget dump_budget_;
  const std::unique_ptr<DumpWriter> dump_writer_;  // Null: nothing is written.
  std::vector<Joining> joins_;
  Clock::time_point next_watch_ = Clock::now();
  Clock::time_point next_peer_check_ = Clock::now();
  unsigned watches_ = 0;  // So far; a clock that costs nothing to look at.
  IdleBackoff backoff_;

  std::thread thread_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ENGINE_H_
