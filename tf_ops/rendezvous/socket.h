// Small helpers around TCP sockets and file descriptors.
#ifndef RING_KERAS_RENDEZVOUS_SOCKET_H_
#define RING_KERAS_RENDEZVOUS_SOCKET_H_

#include <string>
#include <utility>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// A non-blocking listening socket on exactly one address; port 0 takes a free
// one. InvalidArgument for an address that means every interface.
StatusOr<FileDescriptor> Listen(const std::string& address, int port);

// A non-blocking connection to one of the host's addresses, each tried once.
StatusOr<FileDescriptor> ConnectOnce(const std::string& host, int port,
                                     Deadline deadline);

// Small messages must not wait for each other. Best effort.
void DisableNagle(int fd);

// Breaks the connection when what was sent stays unacknowledged for so long:
// a peer whose host vanished says nothing. Best effort.
void LimitUnacknowledged(int fd, double limit_s);

// Whether poll() saw one of `events`, or an error of the socket, in time.
StatusOr<bool> WaitUntilReady(int fd, short events, Deadline deadline);

// Numeric: "127.0.0.1", "::1".
std::string LocalHost(int fd);
int LocalPort(int fd);

// "127.0.0.1:4711", "[::1]:4711".
std::string PeerAddress(int fd);
std::string HostPort(const std::string& host, int port);

// Wakes a thread that polls get().
class WakeUp {
 public:
  static StatusOr<WakeUp> Make();
  int get() const { return fd_.get(); }
  void Notify() const;
  void Clear() const;

 private:
  explicit WakeUp(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_SOCKET_H_
