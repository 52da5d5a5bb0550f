// Chains through all ranks that enter each host once.
#ifndef RING_KERAS_COLLECTIVES_HOST_CHAIN_H_
#define RING_KERAS_COLLECTIVES_HOST_CHAIN_H_

#include <optional>
#include <vector>

#include "tf_ops/collectives/communicator.h"

namespace ring_keras {

// From any rank through the others of its host, then host by host. What one
// rank sends so passes each link between hosts once, whoever that rank is.
class HostChain {
 public:
  explicit HostChain(const Communicator& communicator)
      : hosts_(communicator.hosts()), places_(communicator.size()) {
    for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
      const int count = CountOf(host);
      for (int i = 0; i < count; ++i) places_[hosts_[host][i]] = {host, i};
    }
  }

  // The rank behind this one in the chain of `root`; none behind the last.
  std::optional<int> Next(int root, int rank) const {
    const Place first = places_[root];
    const Place own = places_[rank];
    const bool at_root = own.host == first.host;
    const int next = (own.index + 1) % CountOf(own.host);
    if (next != (at_root ? first.index : 0)) return hosts_[own.host][next];
    const int host = (own.host + 1) % HostCount();
    if (host == first.host) return std::nullopt;
    return hosts_[host][0];
  }
  // The rank before it; none before the root.
  std::optional<int> Previous(int root, int rank) const {
    if (rank == root) return std::nullopt;
    const Place first = places_[root];
    const Place own = places_[rank];
    if (own.host == first.host || own.index > 0) {
      return Before(own.host, own.index);
    }
    const int host = (own.host + HostCount() - 1) % HostCount();
    return Before(host, host == first.host ? first.index : 0);
  }

 private:
  struct Place {
    int host;
    int index;
  };

  int HostCount() const { return static_cast<int>(hosts_.size()); }
  int CountOf(int host) const { return static_cast<int>(hosts_[host].size()); }
  int Before(int host, int index) const {
    return hosts_[host][(index + CountOf(host) - 1) % CountOf(host)];
  }

  const std::vector<std::vector<int>>& hosts_;
  std::vector<Place> places_;  // By rank.
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_HOST_CHAIN_H_
