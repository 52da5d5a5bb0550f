// Makes this rank's TCP connections to other ranks.
//
// Of two ranks the lower one listens. Both prove that they hold the job's
// token before a connection counts; whoever fails to is dropped and logged, and
// the job goes on.
#ifndef RING_KERAS_RUNTIME_TCP_LINKS_H_
#define RING_KERAS_RUNTIME_TCP_LINKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/transport/tcp/tcp_stream.h"

namespace ring_keras {

struct TcpLinkOptions {
  int rank = 0;
  uint64_t generation = 0;
  std::string token;
  bool encrypts = false;  // What follows the handshakes.
  // Where this rank listens, on exactly these. A link's streams are spread over
  // those of the rank that listens.
  std::vector<std::string> bind_addresses;
  int streams = 1;  // Connections per peer.
  // An untrusted peer that takes longer is dropped.
  double handshake_timeout_s = kHandshakeTimeoutS;
  // After which a host that does not answer counts as cut off, where no time is
  // set otherwise.
  double unreachable_after_s = kUnreachableAfterS;
  // How long one attempt to connect may take, of those that the deadline
  // allows.
  double connect_attempt_s = 5;
};

// By rank, `streams` sockets each.
using TcpLinks = std::map<int, std::vector<FileDescriptor>>;

// Connects to each of `peers`. Every rank of the job calls this at the same
// time, also one that has no such peers. Addresses are exchanged through
// `store`. Errors: DeadlineExceeded, Interrupted, PeerLost, Internal.
StatusOr<TcpLinks> ConnectTcpLinks(const TcpLinkOptions& options,
                                   const std::vector<int>& peers, Store& store,
                                   Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TCP_LINKS_H_
