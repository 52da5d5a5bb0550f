#include "tf_ops/runtime/link_addresses.h"

#include <sstream>
#include <utility>

namespace ring_keras {

StatusOr<std::vector<FileDescriptor>> ListenForLinks(
    const TcpLinkOptions& options, std::string* addresses) {
  std::vector<FileDescriptor> listeners;
  for (const std::string& bind_address : options.bind_addresses) {
    StatusOr<FileDescriptor> listener = Listen(bind_address, 0);
    if (!listener.ok()) {
      return Status(
          listener.status().code(), ErrorCode::kNoSuchInterface,
          StrCat("rank ", options.rank, ": ", listener.status().message(),
                 ". RING_KERAS_BIND_ADDRESS must be an address of "
                 "this host that the other hosts reach."));
    }
    const int fd = listener.value().get();
    *addresses += StrCat(LocalHost(fd), " ", LocalPort(fd), "\n");
    listeners.push_back(std::move(listener.value()));
  }
  return listeners;
}

StatusOr<std::vector<SocketAddress>> ParseAddresses(int rank,
                                                    const std::string& text) {
  std::vector<SocketAddress> addresses;
  std::istringstream in(text);
  SocketAddress address;
  while (in >> address.host) {
    if (!(in >> address.port) || !IsPort(address.port)) {
      return Status(StatusCode::kInternal, ErrorCode::kOtherVersion,
                    StrCat("where rank ", rank,
                           " listens cannot be read. Is the same ring_keras "
                           "installed on every host?"));
    }
    addresses.push_back(address);
  }
  if (addresses.empty()) {
    return Status(StatusCode::kInternal,
                  StrCat("rank ", rank, " published no address"));
  }
  return addresses;
}

rendezvous::HandshakeAcceptorOptions LinkAcceptorOptions(
    const TcpLinkOptions& options, size_t expected_count) {
  rendezvous::HandshakeAcceptorOptions result;
  result.owner = StrCat("rank ", options.rank);
  result.purpose = Purpose::kRankToRank;
  result.rank = options.rank;
  result.generation = options.generation;
  result.encrypts = options.encrypts;
  result.token = options.token;
  result.handshake_timeout_s = options.handshake_timeout_s;
  result.max_untrusted = expected_count + kSpareUnauthenticatedConnections;
  return result;
}

}  // namespace ring_keras
