// Where a rank stands in the job.
#ifndef RING_KERAS_RUNTIME_TOPOLOGY_H_
#define RING_KERAS_RUNTIME_TOPOLOGY_H_

#include <vector>

#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {

// local_* count the ranks of this host, cross_* the hosts' ranks with the same
// local_rank.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

// `cards` of all ranks, by rank.
Topology MakeTopology(int rank, const std::vector<PeerCard>& cards);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TOPOLOGY_H_
