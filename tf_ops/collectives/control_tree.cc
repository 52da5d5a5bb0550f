#include "tf_ops/collectives/control_tree.h"

#include <algorithm>

namespace ring_keras {

ControlTree::ControlTree(const std::vector<std::vector<int>>& hosts, int host,
                         int rank) {
  for (int mate : hosts[host]) {
    if (mate != rank) mates_.push_back(mate);
  }
  if (hosts[host].front() == rank) {
    if (host > 0) remote_.push_back(hosts[(host - 1) / kTreeDegree].front());
    const int end =
        std::min(kTreeDegree * (host + 1) + 1, static_cast<int>(hosts.size()));
    for (int below = kTreeDegree * host + 1; below < end; ++below) {
      remote_.push_back(hosts[below].front());
    }
  }
  neighbours_ = mates_;
  neighbours_.insert(neighbours_.end(), remote_.begin(), remote_.end());
}

std::vector<int> ControlTree::Onward(int from) const {
  std::vector<int> others;
  for (int other : remote_) {
    if (other != from) others.push_back(other);
  }
  // A mate has told the other mates itself.
  if (others.size() < remote_.size()) {
    others.insert(others.end(), mates_.begin(), mates_.end());
  }
  return others;
}

}  // namespace ring_keras
