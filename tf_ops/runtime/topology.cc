#include "tf_ops/runtime/topology.h"

namespace ring_keras {
namespace {

// How many ranks below `rank` are on its host.
int LocalRank(int rank, const std::vector<PeerCard>& cards) {
  int local_rank = 0;
  for (int other = 0; other < rank; ++other) {
    local_rank += cards[other].SameHost(cards[rank]) ? 1 : 0;
  }
  return local_rank;
}

}  // namespace

Topology MakeTopology(int rank, const std::vector<PeerCard>& cards) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(cards.size());
  topology.local_rank = LocalRank(rank, cards);
  topology.local_size = 0;
  topology.cross_size = 0;
  for (int other = 0; other < topology.size; ++other) {
    topology.local_size += cards[other].SameHost(cards[rank]) ? 1 : 0;
    if (LocalRank(other, cards) != topology.local_rank) continue;
    ++topology.cross_size;
    topology.cross_rank += other < rank ? 1 : 0;
  }
  return topology;
}

}  // namespace ring_keras
