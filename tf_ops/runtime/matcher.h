// Brings this rank's operations and its peers' announcements together.
//
// The n-th operation that this rank announces under a key (KeyOf: a name, and
// within a step that step) meets the n-th announcement of each peer under it.
// Nobody needs to know what n is. Why all ranks count alike:
// 1. Messages of a peer arrive in the order in which it sent them.
// 2. A rank announces the uses of a name in the order in which it entered them:
//    see Operation::IsMyTurn.
// 3. A use is announced by every rank or by none. None does when all have found
//    in the name's channel that they agree; one that fails before it has
//    announced its use breaks the communicator (Operation::failed_alone).
// Within a step 3 need not hold, and a name is used once: there the step is
// part of the key.
#ifndef RING_KERAS_RUNTIME_MATCHER_H_
#define RING_KERAS_RUNTIME_MATCHER_H_

#include <cstdint>
#include <iterator>
#include <list>
#include <unordered_map>
#include <vector>

#include "tf_ops/matching/announcement.h"
#include "tf_ops/runtime/operation.h"

namespace ring_keras {

// The driver's. Ranks are the job's.
class Matcher {
 public:
  explicit Matcher(int job_size) : job_size_(job_size) {}

  // This rank has announced the operation; it gets what peers announced before.
  void Add(uint64_t key, Operation& operation);
  // It has ended, and does without those that are still to come.
  void Remove(uint64_t key, Operation& operation);

  enum class Found {
    kOperation,  // It has been given the announcement.
    kEnded,      // The operation is gone; so is the announcement.
    kNone,       // This rank has announced no such use yet.
  };
  // Whom the announcement of `rank` meets, which it is left with if kNone.
  Found Take(uint64_t key, int rank, Announcement& announcement);
  // For an operation that is still to be announced.
  void Keep(uint64_t key, int rank, Announcement&& announcement);
  // Whether a peer has announced a use that this rank has not.
  bool HasKept(uint64_t key) const;

  // Forgets steps before `step` of the communicator: operations that have
  // ended, and each announcement for which `drop(announcement)`.
  template <typename Drop>
  void DropStepsBefore(int communicator_id, uint64_t step, Drop drop);

  // Forgets what is kept for a communicator that was removed.
  void ForgetCommunicator(int communicator_id);

  // `visit(rank, announcement)` for all that are kept.
  template <typename Visit>
  void ForEachKept(Visit visit) const;
  // Under each key the first of those that `accept`s; copies.
  template <typename Accept>
  std::vector<Announcement> FirstKept(Accept accept) const;

 private:
  // One of the two is empty.
  struct Peer {
    // Operations that lack its announcement, oldest first; null: it has ended.
    std::list<Operation*> waiting;
    std::list<Announcement> kept;
  };
  struct Uses {
    std::vector<Peer> peers;  // By rank.
    int32_t communicator_id = 0;
    uint64_t step = 0;
    size_t open = 0;  // All that is in the lists.
  };

  Uses& UsesOf(uint64_t key, const UseId& use);
  void EraseIfEmpty(uint64_t key);

  const int job_size_;
  std::unordered_map<uint64_t, Uses> uses_;
};

template <typename Drop>
void Matcher::DropStepsBefore(int communicator_id, uint64_t step, Drop drop) {
  for (auto entry = uses_.begin(); entry != uses_.end();) {
    Uses& uses = entry->second;
    const bool past = uses.communicator_id == communicator_id &&
                      uses.step != 0 && uses.step < step;
    for (Peer& peer : uses.peers) {
      if (!past) break;
      uses.open -= std::erase_if(peer.kept, drop);
      uses.open -= std::erase(peer.waiting, nullptr);
    }
    entry = uses.open == 0 ? uses_.erase(entry) : std::next(entry);
  }
}

template <typename Visit>
void Matcher::ForEachKept(Visit visit) const {
  for (const auto& [key, uses] : uses_) {
    for (int rank = 0; rank < job_size_; ++rank) {
      for (const Announcement& announcement : uses.peers[rank].kept) {
        visit(rank, announcement);
      }
    }
  }
}

template <typename Accept>
std::vector<Announcement> Matcher::FirstKept(Accept accept) const {
  std::vector<Announcement> first;
  for (const auto& [key, uses] : uses_) {
    for (const Peer& peer : uses.peers) {
      if (peer.kept.empty() || !accept(peer.kept.front())) continue;
      first.push_back(peer.kept.front());
      break;
    }
  }
  return first;
}

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_MATCHER_H_
