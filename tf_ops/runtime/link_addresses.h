// Where ranks listen for each other's connections.
#ifndef RING_KERAS_RUNTIME_LINK_ADDRESSES_H_
#define RING_KERAS_RUNTIME_LINK_ADDRESSES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/runtime/tcp_link_options.h"

namespace ring_keras {

struct SocketAddress {
  std::string host;
  int port = 0;
};

// Whether others can connect to it.
inline bool IsPort(int port) { return port > 0 && port <= 65535; }

// Listens on each of the options' addresses, on a free port; `addresses` says
// where, for others. The error names the variable that would help.
StatusOr<std::vector<FileDescriptor>> ListenForLinks(
    const TcpLinkOptions& options, std::string* addresses);

// What `rank` has said so.
StatusOr<std::vector<SocketAddress>> ParseAddresses(int rank,
                                                    const std::string& text);

// To accept as many connections as that from ranks.
rendezvous::HandshakeAcceptorOptions LinkAcceptorOptions(
    const TcpLinkOptions& options, size_t expected_count);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_LINK_ADDRESSES_H_
