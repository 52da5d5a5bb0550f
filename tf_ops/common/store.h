// The key-value service through which the ranks of a job find each other.
//
// An interface here, so that transport need not know how rendezvous works.
#ifndef RING_KERAS_COMMON_STORE_H_
#define RING_KERAS_COMMON_STORE_H_

#include <functional>
#include <string>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// What the store says about another rank of the job.
struct RankEvent {
  enum class Kind { kLost, kLeft };
  Kind kind = Kind::kLost;
  int rank = -1;
  // For people: who it was and how it ended, as in "rank 1 (host node7, pid
  // 4711) was killed by SIGKILL".
  std::string description;
};

// How long the store may take to say why a rank's connections ended. Its words
// name the rank, and are the same on all others.
constexpr double kStoreVerdictS = 3;

class Store {
 public:
  virtual ~Store() = default;

  // Sets `key`; visible to every rank when it returns. Keys and values are
  // bounded: see rendezvous/limits.h.
  virtual Status Set(const std::string& key, const std::string& value) = 0;

  // The value of `key`; waits until somebody sets it.
  //
  // Errors: DeadlineExceeded, PeerLost (a rank of the job ended meanwhile),
  // Internal (the store itself is gone).
  virtual StatusOr<std::string> Get(const std::string& key,
                                    Deadline deadline) = 0;

  // Calls `on_event`, from a thread of the store's, once for every rank that
  // ends. Events that came before the call are delivered too. At most one
  // watcher.
  virtual void Watch(std::function<void(const RankEvent&)> on_event) = 0;

  // The other ranks learn that this one left by its own will, with the reason.
  // Idempotent.
  virtual void Leave(const std::string& reason) = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_STORE_H_
