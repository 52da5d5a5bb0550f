// Which ranks have left or were lost, and what that ends on this one.
//
// That a rank ended is the store's to say, in words that are the same on all
// others. Of a connection that ended while the store hears both ranks, or that
// data need which the other rank will not send, the connection itself says so.
#ifndef RING_KERAS_RUNTIME_PEER_WATCH_H_
#define RING_KERAS_RUNTIME_PEER_WATCH_H_

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/active_operations.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

// The driver's. Ranks are the job's.
class PeerWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // A connection that broke while both ranks were alive.
  struct BrokenLink {
    int rank;
    std::string how;  // The same words on both ends.
    std::string advice;
  };

  // All outlive this. `rank_names`: see EngineOptions.
  PeerWatch(Mesh& mesh, const std::vector<std::string>& rank_names,
            const ActiveOperations& operations)
      : mesh_(mesh), rank_names_(rank_names), operations_(operations) {}

  // A rank has left by its own will.
  void OnLeft(const RankEvent& event) {
    if (LeaveOf(event.rank) == nullptr) left_.push_back({event, Clock::now()});
  }
  // Nothing that `rank` and this one share works any more; -1 is the store.
  void OnLost(int rank, const Status& why);
  // Where a rank of it was lost.
  void BreakIfLost(Communicator& communicator) const {
    for (const auto& [rank, why] : lost_)
      BreakIfShared(communicator, rank, why);
  }

  // Looks at all connections: those that have broken since, each until its rank
  // is given to OnLost().
  std::vector<BrokenLink> FindBrokenLinks(Clock::time_point now);
  bool any_left() const { return !left_.empty(); }
  // How a rank has left; null if it has not.
  const RankEvent* LeaveOf(int rank) const {
    for (const Left& left : left_) {
      if (left.event.rank == rank) return &left.event;
    }
    return nullptr;
  }
  bool any_lost() const { return !lost_.empty(); }
  // Ends operations that have begun and still need data of a rank that left,
  // all of whose data have been read.
  void FailUsesOfLeft();
  // Ends those that wait for one that left. Its last words have been read.
  void FailWhatNeedsLeft();

 private:
  struct Left {
    RankEvent event;
    Clock::time_point since;
    double SecondsUntil(Clock::time_point now) const {
      return std::chrono::duration<double>(now - since).count();
    }
  };

  static void BreakIfShared(Communicator& communicator, int rank,
                            const Status& why) {
    if (rank < 0 || communicator.Contains(rank)) communicator.Break(why);
  }
  bool IsLost(int rank) const;
  // Connections that were needed, and will not be made any more.
  void EndLinksToLeft(Clock::time_point now);
  void FailUsesOf(const Left& left);
  // Whether what it said last has come, if it comes at all.
  bool HasHeard(const Left& left, const Communicator& communicator) const;
  void FailWaits(Operation& operation);
  void FailIfCutOff(Operation& operation);
  std::string DescribeBroken(int rank);
  std::string AdviceAbout(const Pair& pair) const;

  Mesh& mesh_;
  const std::vector<std::string>& rank_names_;
  const ActiveOperations& operations_;
  // These in the order in which all ranks hear of them: they name the same one,
  // because of which others may have gone.
  std::vector<Left> left_;
  std::vector<std::pair<int, Status>> lost_;
  std::map<int, Clock::time_point> closed_since_;
  Clock::time_point next_check_ = Clock::now();
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_PEER_WATCH_H_
