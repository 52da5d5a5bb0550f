#include "tf_ops/runtime/topology.h"

#include <map>
#include <string_view>
#include <utility>

namespace ring_keras {

// Counts once, for jobs of thousands of ranks.
Topology MakeTopology(int rank, const std::vector<PeerCard>& cards) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(cards.size());
  // By host.
  std::map<std::pair<std::string_view, std::string_view>, int> counts;
  std::vector<int> local_ranks;
  for (const PeerCard& card : cards) {
    local_ranks.push_back(counts[{card.boot_id, card.host_id}]++);
  }
  topology.local_rank = local_ranks[rank];
  topology.local_size = counts[{cards[rank].boot_id, cards[rank].host_id}];
  topology.cross_size = 0;
  for (int other = 0; other < topology.size; ++other) {
    if (local_ranks[other] != topology.local_rank) continue;
    ++topology.cross_size;
    topology.cross_rank += other < rank ? 1 : 0;
  }
  return topology;
}

}  // namespace ring_keras
