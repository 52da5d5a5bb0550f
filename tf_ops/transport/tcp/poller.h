// Tells which sockets are worth a system call.
//
// The kernel reports a change once (edge-triggered); until then a socket that
// had nothing to read, or no room to write, is not asked again. Looking at all
// sockets of a rank costs one system call, however many there are.
#ifndef RING_KERAS_TRANSPORT_TCP_POLLER_H_
#define RING_KERAS_TRANSPORT_TCP_POLLER_H_

#include <memory>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// What a socket may do without waiting, as far as is known.
struct Readiness {
  bool readable = true;
  bool writable = true;
  // The peer closed its side: what is left can be read at any time.
  bool hung_up = false;
};

// Not thread-safe.
class Poller {
 public:
  static StatusOr<std::unique_ptr<Poller>> Create();

  // Keeps `readiness` up to date, which lives as long as the socket is open.
  Status Watch(int socket, Readiness* readiness);

  // Takes note of all changes since the last call.
  void Collect();

  // Readable while there are changes to collect.
  int descriptor() const { return epoll_.get(); }

 private:
  explicit Poller(FileDescriptor epoll) : epoll_(std::move(epoll)) {}
  FileDescriptor epoll_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_TCP_POLLER_H_
