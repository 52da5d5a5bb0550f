// A socket whose peer has proven itself, in the clear or under TLS.
#ifndef RING_KERAS_RENDEZVOUS_PEER_SOCKET_H_
#define RING_KERAS_RENDEZVOUS_PEER_SOCKET_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/tls/tls_session.h"

namespace ring_keras::rendezvous {

// Never waits.
class PeerSocket {
 public:
  PeerSocket() = default;
  explicit PeerSocket(FileDescriptor socket) : socket_(std::move(socket)) {}
  // Under TLS with this key. Error: Internal (there is no OpenSSL).
  static StatusOr<PeerSocket> Encrypted(FileDescriptor socket, tls::Role role,
                                        const std::string& key);

  int fd() const { return socket_.get(); }
  bool valid() const { return socket_.valid(); }
  void Close();

  // Sends what the socket takes; how many bytes. 0: try again when it is
  // writable, or when something has come. PeerLost: it is broken.
  StatusOr<size_t> Send(std::string_view bytes);

  // Adds what has come, at most about kReadBytes. PeerLost: the peer has closed
  // it. Internal: it broke. Unauthenticated: what came is not what it sent.
  Status Receive(std::string* bytes);

  // Whether it is worth waiting until the socket takes more, when the caller
  // has more to send, or not.
  bool AwaitsRoom(bool has_more) const {
    return tls_ == nullptr ? has_more : tls_->has_pending();
  }
  // Whether all that it took has gone out.
  bool drained() const { return tls_ == nullptr || !tls_->has_pending(); }

 private:
  FileDescriptor socket_;
  std::unique_ptr<tls::Session> tls_;  // Null: in the clear.
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_PEER_SOCKET_H_
