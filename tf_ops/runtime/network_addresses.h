// Finds the addresses on which a rank listens for those of other hosts.
#ifndef RING_KERAS_RUNTIME_NETWORK_ADDRESSES_H_
#define RING_KERAS_RUNTIME_NETWORK_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/runtime/peer_card.h"

namespace ring_keras {

struct NetworkOptions {
  int rank = 0;
  uint64_t generation = 0;
  std::string token;
  std::string store_address;  // This host's own, on the way to the store.
  std::string bind_address;   // Takes the place of the choice, if not empty.
  std::vector<std::string> interfaces;  // To choose among; empty: all.
};

// Every rank of the job calls this at the same time. The first rank of each
// host tries the other hosts' addresses, and all ranks draw the same
// conclusion. One address or, if several interfaces are named, one of each.
// Where all ranks see the same interfaces, nothing is tried: it is the one
// towards the store.
//
// Errors: InvalidArgument (no interface of these names), Internal (two hosts
// have no network in common: names both and their addresses), Interrupted,
// DeadlineExceeded, PeerLost.
StatusOr<std::vector<std::string>> FindBindAddresses(
    const NetworkOptions& options, const std::vector<PeerCard>& cards,
    Store& store, Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_NETWORK_ADDRESSES_H_
