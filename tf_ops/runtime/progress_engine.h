// Moves this rank's operations on: the part of the engine that is the driver's.
//
// Whoever drives (engine_drive.cc) calls this, so one thread at a time; only
// what is in SharedState is seen by others meanwhile. An operation's way leads
// from the queue, or from RunAlone(), by Adopt() to End(). Each of the parts
// knows one reason for which an operation may not go on: a peer that has ended
// (PeerWatch), that is in another step (StepAgreement), or in a join (Joins).
#ifndef RING_KERAS_RUNTIME_PROGRESS_ENGINE_H_
#define RING_KERAS_RUNTIME_PROGRESS_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/monitoring/recorder.h"
#include "tf_ops/runtime/active_operations.h"
#include "tf_ops/runtime/engine_options.h"
#include "tf_ops/runtime/flight_recorder.h"
#include "tf_ops/runtime/joins.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/peer_watch.h"
#include "tf_ops/runtime/shared_state.h"
#include "tf_ops/runtime/step_agreement.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

// The driver's, which does not hold the engine's mutex.
class ProgressEngine {
 public:
  // All outlive this. It handles what comes from peers whenever the mesh moves.
  ProgressEngine(const EngineOptions& options, Mesh& mesh, Scheduler& scheduler,
                 Matcher& matcher, const Recorder& recorder,
                 SharedState& shared);
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // One turn: takes what is new, moves what can be moved. Whether anything was.
  bool Poll();
  // Starts an operation while there is no other, and drives it for about
  // `drive_for_s`, or until something else comes up. Whether it has ended, and
  // its caller has been told.
  bool RunAlone(Operation& operation, double drive_for_s);
  // Looks for what takes too long, and at the peers; if it is time to.
  void WatchIfDue() {
    if (Clock::now() >= next_watch_) Watch();
  }
  // Times that it has; a clock that costs nothing to look at.
  unsigned watches() const { return watches_; }
  // Breaks what losses and aborts that were heard of break; whether any did.
  bool CarryOutBreaks();
  // Looks whether somebody has asked by a signal for what is under way.
  void ServeDumpSignal();

  // This rank's program has failed in a step.
  void GiveUpStep(Member& member, const std::string& why,
                  const GiveUpOptions& options) {
    if (!member.communicator->status().ok()) return;
    steps_.GiveUpNext(member, why, options);
  }

  // Writes down what is under way, on every rank.
  using Asker = FlightRecorder::Asker;
  void WriteDump(DumpCause cause, const std::string& why, Asker asker);
  // Whether somebody debugs this rank, at whose prompt it stands. No rank tires
  // of waiting, nor speaks of it, meanwhile.
  void TellDebugged(bool is_debugged);
  // Waits some seconds for this rank's. From any thread.
  void AwaitDumps() { flight_recorder_.Await(); }
  // The operations, as far as they have come. `with_missing`: and for whom each
  // waits, which takes a look at every rank.
  std::vector<PendingCollective> UnderWay(bool with_missing) const;

  // Whether a rank was lost, or has left: what needs it fails.
  bool any_gone() const {
    return !breaks_.empty() || peers_.any_lost() || peers_.any_left();
  }
  // Where a rank of it was lost.
  void BreakIfLost(Communicator& communicator) const {
    peers_.BreakIfLost(communicator);
  }
  const RankEvent* LeaveOf(int rank) const { return peers_.LeaveOf(rank); }

 private:
  using Clock = Operation::Clock;

  // What is new.
  bool TakeNews();
  void OnRankEvent(const RankEvent& event);
  void OnStop();
  void OnInterrupted(const InterruptedWait& wait);
  void RunCalls(const std::vector<DriverCall*>& calls);

  // It becomes one of the active ones, and starts unless it has.
  void Adopt(std::unique_ptr<Operation> adopted);
  bool FinishEnded();
  // Clears up after an operation, and tells its caller; `alone` as for
  // Operation::Record.
  void End(Operation& operation, bool alone);
  // Nothing that `job_rank` and this one share works any more.
  void BreakSharedWith(int job_rank, const Status& why);

  // Messages: progress_engine_messages.cc.
  void HandleControl(int job_rank, FrameType type, uint64_t key,
                     std::string payload);
  void HandleAnnouncement(int job_rank, uint64_t key, const std::string& bytes);
  void HandlePost(int job_rank, uint64_t key, std::string bytes);
  void HandleWaiting(int job_rank, uint64_t key, std::string bytes);
  void HandleAbort(int communicator_id, const std::string& bytes);
  void HandleGivenUp(int job_rank, int communicator_id,
                     const std::string& bytes);
  void HandleRelayed(int job_rank, int communicator_id,
                     const std::string& bytes);

  void HandleAwaited(const std::string& how);

  // Has the ranks that the operation waits for say where they stand.
  void TellAwaited(const Operation& operation, const std::string& how);
  void NoteDebugged(int job_rank, bool is_debugged);

  void Watch();
  // Reads what peers have sent, but not without end; whether that was all.
  bool ReadWhatHasCome();
  // Deadlines and stalls.
  void WatchAge(Operation& operation, Clock::time_point now);

  const EngineOptions& options_;
  const std::string& own_name_;
  Mesh& mesh_;
  Scheduler& scheduler_;
  Matcher& matcher_;
  SharedState& shared_;

  ActiveOperations operations_;
  PeerWatch peers_;
  StepAgreement steps_;
  Joins joins_;
  FlightRecorder flight_recorder_;
  std::set<int> debugged_;
  // What losses of which this rank has heard do to communicators. What had come
  // before is used first: an operation to which a rank had given its part is
  // none that breaks when that rank ends.
  std::vector<std::function<void()>> breaks_;
  bool stopping_ = false;
  Clock::time_point next_watch_ = Clock::now();
  unsigned watches_ = 0;
  // When this rank was last asked where its program stands.
  Clock::time_point last_place_{};
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_PROGRESS_ENGINE_H_
