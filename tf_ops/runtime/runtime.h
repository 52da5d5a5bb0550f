// The process's one runtime: joins the job, takes requests, leaves.
//
// Only kernels/ and bindings/ call Runtime::Get(); everything below takes what
// it needs as an argument.
//
// A forked child is not in the job of the process it was forked from: there
// only what is known without the other ranks goes on (initialized,
// GetTopology), and the rest is NotInitialized.
#ifndef RING_KERAS_RUNTIME_RUNTIME_H_
#define RING_KERAS_RUNTIME_RUNTIME_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/common/fork.h"
#include "tf_ops/common/status.h"
#include "tf_ops/matching/step_ledger.h"
#include "tf_ops/runtime/init_options.h"
#include "tf_ops/runtime/request.h"
#include "tf_ops/runtime/topology.h"

namespace ring_keras {

class RepeatedCall;

class RING_KERAS_EXPORT Runtime {
 public:
  static Runtime& Get();

  // Joins the job; returns when every rank has. While it waits, the program's
  // signals are handled; Interrupted if one of their handlers asks for that, or
  // Shutdown was called meanwhile. Error if already initialized.
  Status Init(const InitOptions& options);

  // Leaves the job. Pending requests end with Aborted. `reason` is what the
  // other ranks are told. Idempotent.
  void Shutdown(const std::string& reason);

  bool initialized() const;

  // NotInitialized before Init.
  StatusOr<Topology> GetTopology() const;

  // Takes part in a collective. `done` gets the outcome; it may run before
  // Submit returns. Memory of the request must live until then. For about
  // `drive_for_s` the calling thread does the work itself while its peers are
  // in step, then leaves it to the engine's thread.
  void Submit(Request request, DoneCallback done, double drive_for_s = 0);

  // Submit, then waits; this thread does the work where it can. While it waits
  // long, the program's signals are handled (signals.h).
  Status Run(Request request);

  // The same of a call that is made again and again. `before_waiting` runs if
  // it cannot end within some microseconds.
  Status Run(RepeatedCall& call, const std::function<void()>& before_waiting);

  // See Engine.
  StatusOr<int> FirstAwaited(std::vector<std::pair<int, std::string>> names);

  // A thread gives up waiting for a collective of this communicator, or of all:
  // what is pending there fails on all ranks.
  void Interrupt(int communicator_id);
  void InterruptAll();

  // See Engine.
  Status GiveUpStep(int communicator_id, const std::string& why,
                    const GiveUpOptions& options);
  Status ForgetGivenUp(int communicator_id);

  // Makes a communicator of `ranks` (of the whole job, ascending). Every rank
  // of the job must call it, members or not, in the same order. Returns the
  // same id on each. InvalidArgument: out of range, unordered, or the same
  // ranks exist already.
  StatusOr<int> AddCommunicator(const std::vector<int>& ranks);
  // Forgets it; collective as above. Id 0, the whole job, cannot be removed.
  Status RemoveCommunicator(int communicator_id);
  // Makes a communicator of `ranks` (of the whole job, ascending) that its
  // members alone know of. The caller has them agree on its number, from
  // kFirstOfMembers on and never used before in this job, and wait until all
  // have it. It lasts as long as the job. InvalidArgument: as above, or this
  // rank is no member, or has the number.
  Status JoinCommunicator(int id, const std::vector<int>& ranks);
  // The job's ranks that belong to it, ascending.
  StatusOr<std::vector<int>> CommunicatorRanks(int communicator_id) const;

  // Zeroed memory that the ranks of this host can reduce in place; private
  // memory where no rank shares any with this one. May outlive the job.
  StatusOr<std::shared_ptr<void>> AllocateBuffer(size_t nbytes);

  // Replaces the thresholds of all communicators. Every rank of the job must
  // call it, with the same values, while no collective is pending.
  Status SetTuning(const Tuning& tuning);
  StatusOr<Tuning> GetTuning() const;

  // Which transport reaches `rank`: "self", "shm", "tcp", "mpi", or the name of
  // a library.
  StatusOr<std::string> TransportTo(int rank) const;

 private:
  Runtime();
  ~Runtime();
  struct Impl;
  void ForgetInChild();
  std::unique_ptr<Impl> impl_;
  ForkHandler in_child_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_RUNTIME_H_
