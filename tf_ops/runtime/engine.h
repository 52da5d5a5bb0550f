// Carries out this rank's collectives.
//
// One thread at a time drives: it takes requests, moves bytes, resumes
// algorithms. Run() lets the calling thread drive, so that a blocking call
// costs no thread switch; Submit() leaves it to the engine's own thread, which
// sleeps while there is nothing to do. This is what other threads see of it,
// and who drives (engine_drive.cc); what a driver does is progress_engine.h.
#ifndef RING_KERAS_RUNTIME_ENGINE_H_
#define RING_KERAS_RUNTIME_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tf_ops/collectives/launch_order.h"
#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/engine_options.h"
#include "tf_ops/runtime/idle_backoff.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/progress_engine.h"
#include "tf_ops/runtime/repeated_call.h"
#include "tf_ops/runtime/request.h"
#include "tf_ops/runtime/shared_state.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

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

  // The same of a call that is made again and again, if it can end within some
  // microseconds, in which nothing is waited for; whether it has, well. If not,
  // and there is something in `begun`, Finish() waits for that; else the caller
  // runs the request. `call` is this engine's membership's, and outlives both.
  bool RunAtOnce(RepeatedCall& call, std::unique_ptr<BegunCall>* begun);
  Status Finish(std::unique_ptr<BegunCall> begun);

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
  static constexpr int kEveryCommunicator = InterruptedWait::kEveryCommunicator;
  void Interrupt(int communicator_id);

  // This rank's program has failed in a step of a communicator, and goes on to
  // something else: all ranks give up that step, the one before which they may
  // be about to meet, in these words. They begin with an error code. From any
  // thread that is no driver.
  void GiveUpStep(int communicator_id, const std::string& why,
                  const GiveUpOptions& options);
  // What was given up by now, the program has heard of, or will not ask for.
  void ForgetGivenUp(int communicator_id);

  // Another rank ended. From any thread.
  void OnRankEvent(const RankEvent& event);

  // Runs `look` while nobody drives but it, so that it may read what is the
  // driver's; returns when it has. It must be quick. From any thread that is no
  // driver.
  void WithDriver(const std::function<void()>& look) noexcept;
  // The first of these names, on these communicators, whose next use a peer has
  // entered, and this rank has not; -1: none, as far as has come by now. An
  // error if a rank was lost, or none is left that may come. From any thread
  // that is no driver.
  StatusOr<int> FirstAwaited(
      const std::vector<std::pair<int, std::string>>& names);
  Recorder& recorder() { return recorder_; }
  // Writes down what is under way, on every rank, and waits some seconds for
  // this one's. From any thread that is no driver.
  void Dump(const std::string& why);
  // See ProgressEngine. From any thread that is no driver.
  void TellDebugged(bool is_debugged) {
    WithDriver([&] { progress_.TellDebugged(is_debugged); });
  }
  // With the driver; see ProgressEngine.
  std::vector<PendingCollective> UnderWay(bool with_missing) const {
    return progress_.UnderWay(with_missing);
  }

  // Ends what is pending with Aborted and takes nothing more. `why`, unless it
  // is empty, is told beside that. From any thread.
  void Stop(const std::string& why = "");
  // Waits, at most for so long, until what Stop() ends is on its way to peers.
  // From any thread that is no driver.
  void AwaitStopTold(double timeout_s);
  // Waits until the peers have taken all that this rank has for them, at most
  // for so long; whether they have. From any thread that is no driver.
  bool AwaitSent(double timeout_s);
  // Collectives that have not ended.
  int pending_count() const;
  // The first connection to a peer that this rank has seen break while the peer
  // was alive, in words; empty if there is none. From any thread.
  std::string broken_link() const;
  Mesh& mesh() { return *mesh_; }

 private:
  // See FirstAwaited; with the driver. An error if no peer of this one comes.
  StatusOr<bool> IsAwaited(int communicator_id, const std::string& name);
  // For tensors on a GPU: what takes too long for the driver. The caller does
  // not hold the mutex.
  void PrepareDevice(Request& request);
  // The caller holds the mutex. On an error nothing is taken.
  StatusOr<std::unique_ptr<Operation>> Accept(Request& request,
                                              DoneCallback& done);

  // Calls that end at once: engine_at_once.cc. The caller holds the mutex.

  // What `call` needs of this rank's past; whether it may be tried.
  bool Recall(RepeatedCall& call, Member& member);
  // For a call that has posted as use number `sequence` of its name.
  std::unique_ptr<BegunCall> LeaveOperation(
      RepeatedCall& call, const std::shared_ptr<Member>& member,
      uint64_t sequence, const CollectiveRecord& record) noexcept;

  // Who drives: engine_drive.cc.

  // Carries out what was accepted, or waits until others have, and `ended` is
  // set. The caller holds `lock`.
  void Await(std::unique_ptr<Operation> operation, int communicator_id,
             const std::atomic<bool>& ended,
             std::unique_lock<std::mutex>& lock);
  // Leaves it to the driver. The caller holds the mutex.
  void Enqueue(std::unique_ptr<Operation> operation) noexcept;
  // What the driver waits for may have happened. Any thread.
  void WakeDriver();
  // Whether the operation is all there is, so that its caller's thread may
  // carry it out. The caller holds the mutex.
  bool IsAlone(const Operation& operation) const;
  // Drives this operation alone for a while, until something else comes up.
  // Unless it has ended then, it is the first in the queue, and has started.
  // The caller holds `lock`, and is the driver from here on.
  void TryAlone(std::unique_ptr<Operation> operation, double drive_for_s,
                std::unique_lock<std::mutex>& lock) noexcept;
  void ThreadMain();
  // The caller holds the mutex.
  void StopDriving();
  // Drives until `condition()`; the caller has set driving_.
  template <typename Condition>
  void DriveUntil(Condition condition) noexcept;

  // Among all engines of this process, from 1.
  const uint64_t number_;
  const EngineOptions options_;
  // What communicators and operations stand on; the driver's, but for the mesh
  // and the launcher, which say themselves what others may do.
  std::unique_ptr<Mesh> mesh_;
  Scheduler scheduler_;
  nccl::Launcher launcher_;
  LaunchOrder launch_order_;
  Matcher matcher_;
  Recorder recorder_;

  SharedState shared_;            // Its mutex is "the mutex" here.
  std::condition_variable work_;  // For the thread: there is work to drive.
  bool driving_ = false;          // Guarded by the mutex: somebody does.
  std::atomic<bool> asleep_{false};

  // The driver's.
  ProgressEngine progress_;
  IdleBackoff backoff_;

  std::thread thread_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ENGINE_H_
