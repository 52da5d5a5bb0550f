// TCP sockets: listening, connecting, options. Non-blocking, close-on-exec.
#ifndef RING_KERAS_TRANSPORT_TCP_SOCKET_H_
#define RING_KERAS_TRANSPORT_TCP_SOCKET_H_

#include <string>
#include <utility>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct SocketAddress {
  std::string host;
  int port = 0;
};

// Listens on one address; port 0 lets the system choose, and the socket stays
// open, so nobody else can take the port.
StatusOr<Socket> Listen(const std::string& bind_address, int backlog);
StatusOr<SocketAddress> LocalAddress(const Socket& socket);

// Waits for a connection. DeadlineExceeded when none comes.
StatusOr<Socket> Accept(const Socket& listener, Deadline deadline);

// Tries until the deadline: the peer may not listen yet.
StatusOr<Socket> Connect(const SocketAddress& address, Deadline deadline);

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_SOCKET_H_
