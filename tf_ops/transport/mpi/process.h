// MPI in this process: begun once, by us or by somebody else (mpi4py), and
// ended with the process by who has begun it.
#ifndef RING_KERAS_TRANSPORT_MPI_PROCESS_H_
#define RING_KERAS_TRANSPORT_MPI_PROCESS_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/fork.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/transport/mpi/calls.h"
#include "tf_ops/transport/mpi/progress_thread.h"

namespace ring_keras::mpi {

class Process {
 public:
  // Begins MPI, unless this has been called before: see OpenCalls(). Any
  // thread. Internal: there is none, it cannot be used, or not from all
  // threads.
  static StatusOr<Process*> Start(const std::string& library,
                                  const std::string& folder);
  static bool IsRunning();

  Calls& calls() { return *calls_; }

  // Makes the communicator, the first time. All of MPI's processes call it.
  // Errors: PeerLost, DeadlineExceeded, Interrupted, Internal.
  Status MakeCommunicator(Store& store, Deadline deadline);

  // A process has died. MPI's end would wait for it, so there is none.
  void LosePeer() { lost_peer_ = true; }

  // Keeps the memory of a message until it is done.
  enum class Kind { kSend, kReceive };
  // Any thread.
  void Keep(Kind kind, const Request& request, std::shared_ptr<char[]> memory);
  // Lets go of those that are; how many are left. Any thread.
  size_t Sweep();

 private:
  struct Kept {
    Kind kind;
    Request request;
    std::shared_ptr<char[]> memory;
  };

  explicit Process(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}
  static StatusOr<Process*> Begin(const std::string& library,
                                  const std::string& folder);
  static void End();
  // What has been sent gets there; then MPI ends.
  void Finalize();

  const std::unique_ptr<Calls> calls_;
  const OwnerProcess owner_;
  Request communicator_;  // On its way, if begun_.
  bool begun_ = false;
  bool has_communicator_ = false;
  std::atomic<bool> lost_peer_{false};
  bool ours_ = false;  // We have begun it.
  ProgressThread progress_;
  std::mutex kept_mutex_;
  std::vector<Kept> kept_;
};

}  // namespace ring_keras::mpi

#endif  // RING_KERAS_TRANSPORT_MPI_PROCESS_H_
