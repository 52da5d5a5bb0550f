// How a rank connects to others by TCP.
#ifndef RING_KERAS_RUNTIME_TCP_LINK_OPTIONS_H_
#define RING_KERAS_RUNTIME_TCP_LINK_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

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
  // All connections are made by Await(): there must be descriptors for all of
  // them, and a host that does not answer is tried until then.
  bool at_once = false;
  // An untrusted peer that takes longer is dropped.
  double handshake_timeout_s = kHandshakeTimeoutS;
  // After which a host that does not answer counts as cut off, where no time is
  // set otherwise.
  double unreachable_after_s = kUnreachableAfterS;
  // How long one attempt to connect may take, of those that the deadline
  // allows.
  double connect_attempt_s = 5;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TCP_LINK_OPTIONS_H_
