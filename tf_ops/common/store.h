// The service through which the ranks of a job find each other.
//
// An interface here, so that transport need not know how rendezvous works.
#ifndef RING_KERAS_COMMON_STORE_H_
#define RING_KERAS_COMMON_STORE_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// What the store says about a rank of the job.
struct RankEvent {
  enum class Kind { kLost, kLeft };
  Kind kind = Kind::kLost;
  int rank = -1;
  // For people: who it was and how it ended, as in "rank 1 (host node7, pid
  // 4711) was killed by SIGKILL".
  std::string description;
  // Of one that was lost: its process is no more, which a rank that is merely
  // silent may still be.
  bool process_ended = false;
};

// A rank that is silent for so long is lost, where no other time is set: what
// pauses machines (a live migration, a switch that fails over) takes less, and
// most jobs have no way back.
inline constexpr double kHeartbeatTimeoutS = 30;
// A host that does not answer its peers is given up so much later: what the
// store says of it is the same on all other ranks.
inline constexpr double kBeyondHeartbeatS = 2;

// How long the store may take to say why a rank's connections ended. Its words
// name the rank, and are the same on all others.
constexpr double kStoreVerdictS = 3;

// A death explains more than those who leave before or after it. `events` has 1
// or more.
inline const RankEvent& CauseOf(const std::vector<RankEvent>& events) {
  const auto lost =
      std::find_if(events.begin(), events.end(), [](const RankEvent& event) {
        return event.kind == RankEvent::Kind::kLost;
      });
  return lost == events.end() ? events.front() : *lost;
}

class Store {
 public:
  virtual ~Store() = default;

  // Gives this rank's value to a topic, and waits until every rank of the job
  // has given one: all of them, by rank. A topic is as new after that. What a
  // rank gave that stops waiting counts as not given. Topics and values are
  // bounded: see rendezvous/limits.h.
  //
  // Errors: DeadlineExceeded (whose message is who has given none, "rank 3 of
  // 4"), Interrupted, PeerLost (a rank of the job ended meanwhile, or the store
  // itself is gone), InvalidArgument, ResourceExhausted.
  virtual StatusOr<std::vector<std::string>> Gather(const std::string& topic,
                                                    const std::string& value,
                                                    Deadline deadline) = 0;

  // Waits until the deadline. Errors: PeerLost (a rank of the job has ended, or
  // the store itself is gone), Interrupted.
  virtual Status Pause(Deadline deadline) = 0;

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
