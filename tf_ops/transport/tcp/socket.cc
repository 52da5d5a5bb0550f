#include "tf_ops/transport/tcp/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace ring_keras {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

StatusOr<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

void DisableDelay(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// One attempt; the status says why it failed.
StatusOr<Socket> TryConnect(const addrinfo& to, Deadline deadline) {
  Socket socket(
      ::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = 0;
  if (connect(socket.descriptor(), to.ai_addr, to.ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      pollfd waiting{socket.descriptor(), POLLOUT, 0};
      if (poll(&waiting, 1, deadline.RemainingMilliseconds()) == 1) {
        socklen_t length = sizeof(error);
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
      } else {
        error = ETIMEDOUT;
      }
    }
  }
  if (error != 0) return Status(StatusCode::kInternal, ErrnoMessage(error));
  DisableDelay(socket.descriptor());
  return socket;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

StatusOr<Socket> Listen(const std::string& bind_address, int backlog) {
  auto resolved = Resolve(bind_address, 0, AI_PASSIVE);
  if (!resolved.ok()) return resolved.status();
  const addrinfo& at = *resolved.value();
  Socket socket(
      ::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (bind(socket.descriptor(), at.ai_addr, at.ai_addrlen) != 0 ||
      listen(socket.descriptor(), backlog) != 0) {
    return Status(
        StatusCode::kInternal,
        StrCat("cannot listen on '", bind_address, "': ", ErrnoMessage(errno),
               ". RING_KERAS_BIND_ADDRESS must be an address of "
               "this host."));
  }
  return socket;
}

StatusOr<SocketAddress> LocalAddress(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&storage),
                  &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&storage), length, host,
                  sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("getsockname failed: ", ErrnoMessage(errno)));
  }
  return SocketAddress{host, std::stoi(port)};
}

StatusOr<Socket> Accept(const Socket& listener, Deadline deadline) {
  while (true) {
    Socket accepted(accept4(listener.descriptor(), nullptr, nullptr,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.descriptor() >= 0) {
      DisableDelay(accepted.descriptor());
      return accepted;
    }
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded, "no connection came");
    }
    pollfd waiting{listener.descriptor(), POLLIN, 0};
    poll(&waiting, 1, deadline.RemainingMilliseconds());
  }
}

StatusOr<Socket> Connect(const SocketAddress& address, Deadline deadline) {
  constexpr int kRetryMilliseconds = 20;
  while (true) {
    auto resolved = Resolve(address.host, address.port, 0);
    Status last = resolved.status();
    if (resolved.ok()) {
      for (addrinfo* to = resolved.value().get(); to; to = to->ai_next) {
        auto socket = TryConnect(*to, deadline);
        if (socket.ok()) return socket;
        last = socket.status();
      }
    }
    if (deadline.RemainingMilliseconds() <= kRetryMilliseconds) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("cannot connect to ", address.host, ":",
                           address.port, ": ", last.message()));
    }
    poll(nullptr, 0, kRetryMilliseconds);
  }
}

}  // namespace ring_keras
