// How a rank becomes one of a job's: it finds all others and connects to them.
#ifndef RING_KERAS_RUNTIME_BOOTSTRAP_H_
#define RING_KERAS_RUNTIME_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/store.h"
#include "tf_ops/runtime/init_options.h"
#include "tf_ops/runtime/topology.h"
#include "tf_ops/transport/mesh.h"

namespace ring_keras {

struct Membership {
  std::unique_ptr<Store> store;  // Null for a job of one rank.
  std::unique_ptr<Mesh> mesh;
  Topology topology;
  std::vector<std::string> rank_names;  // "rank 1 (host node7, pid 4711)".
  uint64_t generation = 0;  // Its number among the job's memberships.
};

// Returns when every rank of the job has done the same and every pair of ranks
// is connected: by shared memory where both ends can map the other's, else by
// TCP, unless there are so many that they connect later. Errors:
// DeadlineExceeded (says which rank is missing), Interrupted, RankMismatch (of
// the tuning), PeerLost, Unauthenticated, Internal.
StatusOr<Membership> Bootstrap(const InitOptions& options);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_BOOTSTRAP_H_
