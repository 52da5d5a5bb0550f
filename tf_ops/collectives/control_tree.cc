#include "tf_ops/collectives/control_tree.h"

#include <algorithm>
#include <map>

namespace ring_keras {

std::vector<std::vector<int>> RanksByHost(
    const std::vector<int>& host_numbers) {
  std::vector<std::vector<int>> hosts;
  std::map<int, size_t> place_of;
  for (size_t rank = 0; rank < host_numbers.size(); ++rank) {
    const auto [found, is_new] =
        place_of.emplace(host_numbers[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[found->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

int HostOf(const std::vector<std::vector<int>>& hosts, int rank) {
  const auto found = std::find_if(
      hosts.begin(), hosts.end(), [rank](const std::vector<int>& ranks) {
        return std::binary_search(ranks.begin(), ranks.end(), rank);
      });
  return static_cast<int>(found - hosts.begin());
}

ControlTree::ControlTree(const std::vector<std::vector<int>>& hosts, int host,
                         int rank) {
  for (int other : hosts[host]) {
    if (other != rank) local_.push_back(other);
  }
  if (hosts[host].front() == rank) {
    if (host > 0) remote_.push_back(hosts[(host - 1) / kTreeDegree].front());
    const int end =
        std::min(kTreeDegree * (host + 1) + 1, static_cast<int>(hosts.size()));
    for (int below = kTreeDegree * host + 1; below < end; ++below) {
      remote_.push_back(hosts[below].front());
    }
  }
  adjacent_ = local_;
  adjacent_.insert(adjacent_.end(), remote_.begin(), remote_.end());
}

std::vector<int> ControlTree::Onward(int from) const {
  std::vector<int> others;
  for (int other : remote_) {
    if (other != from) others.push_back(other);
  }
  // One of this host has told the others of it itself.
  if (others.size() < remote_.size()) {
    others.insert(others.end(), local_.begin(), local_.end());
  }
  return others;
}

}  // namespace ring_keras
