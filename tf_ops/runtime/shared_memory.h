// Which ranks share memory, as every rank works it out from the same cards.
#ifndef RING_KERAS_RUNTIME_SHARED_MEMORY_H_
#define RING_KERAS_RUNTIME_SHARED_MEMORY_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {

// Ranks as a text for the store.
std::string EncodeRanks(const std::vector<int>& ranks);

class SharedMemory {
 public:
  // Both by rank. `unattached`: to whose memory a rank may have access by the
  // cards, and has not, as EncodeRanks() gives it.
  SharedMemory(const std::vector<PeerCard>& cards,
               const std::vector<std::string>& unattached);

  // Whether each of the two could map the other's memory.
  bool Between(int a, int b) const;
  // Whether all ranks share memory with all.
  bool IsComplete() const;

  // Gives each rank a number that it has in common with the ranks with which it
  // shares memory. A rank that shares with one and not with another that the
  // first does share with counts as a host of its own.
  std::vector<int> NumberHosts() const;

 private:
  // The lowest of the ranks that share memory with `rank` and among each other,
  // and with no others of `ranks`, which are all of a host; else the rank
  // itself.
  int FirstOfGroup(int rank, const std::vector<int>& ranks) const;

  // The first of the ranks that may share memory by their cards; itself, if no
  // other may.
  std::vector<int> first_;
  std::set<std::pair<int, int>> failed_;  // The lower rank first.
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_SHARED_MEMORY_H_
