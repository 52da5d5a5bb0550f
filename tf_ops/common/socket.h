// File descriptors and TCP sockets. Sockets are non-blocking and close-on-exec.
#ifndef RING_KERAS_COMMON_SOCKET_H_
#define RING_KERAS_COMMON_SOCKET_H_

#include <string>
#include <utility>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/fork.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// Owns a file descriptor, which forked children close.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), owner_(other.owner_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
  // In a forked child the number may mean something else by now.
  OwnerProcess owner_;
};

// Listens on exactly one address; port 0 takes a free one, and nobody else can
// take it while the socket is open. Errors: InvalidArgument (the address means
// every interface), Internal.
StatusOr<FileDescriptor> Listen(const std::string& address, int port);

// Connects to one of the host's addresses, each tried once. Errors:
// DeadlineExceeded, Interrupted, Internal.
StatusOr<FileDescriptor> ConnectOnce(const std::string& host, int port,
                                     Deadline deadline);

// The beginning of it, to one numeric address: whether it has come to
// something is known once the socket is writable. Errors: Internal.
StatusOr<FileDescriptor> BeginConnecting(const std::string& address, int port);
Status ConnectResult(int fd);

// Small messages must not wait for each other. Best effort; what ConnectOnce
// returns has it.
void DisableNagle(int fd);

// Breaks the connection when what was sent stays unacknowledged for so long:
// a peer whose host vanished says nothing. Best effort.
void LimitUnacknowledged(int fd, double limit_s);

// Breaks an idle connection when the peer's host has not answered the kernel's
// probes for so long, 2 s or more. Says nothing of data under way: see above.
// Best effort.
void ProbeWhenIdle(int fd, double limit_s);

// Whether poll() saw one of `events`, or an error of the socket, in time.
// Errors: Interrupted, Internal.
StatusOr<bool> WaitUntilReady(int fd, short events, Deadline deadline);

// Numeric: "127.0.0.1", "::1".
std::string LocalHost(int fd);
int LocalPort(int fd);

// "127.0.0.1:4711", "[::1]:4711".
std::string LocalAddress(int fd);
std::string PeerAddress(int fd);
std::string HostPort(const std::string& host, int port);

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_SOCKET_H_
