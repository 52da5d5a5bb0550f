#include "tf_ops/rendezvous/peer_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

// A whole record each time, so that nothing of it is left where no poll() sees
// it.
static_assert(kReadBytes >= tls::kRecordBytes);

constexpr ssize_t kBroken = -1;

// As tls::Network has it: 0 if not now.
ssize_t SendNow(int fd, const void* data, size_t nbytes) {
  while (true) {
    const ssize_t sent = send(fd, data, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return kBroken;
  }
}

Status Closed() { return Status(StatusCode::kPeerLost, "closed"); }

Status Broke(int error) {
  return Status(StatusCode::kInternal,
                StrCat("broke (", ErrnoMessage(error), ")"));
}

}  // namespace

StatusOr<PeerSocket> PeerSocket::Encrypted(FileDescriptor socket,
                                           tls::Role role,
                                           const std::string& key) {
  PeerSocket peer(std::move(socket));
  const int fd = peer.fd();
  tls::SessionOptions options;
  options.role = role;
  options.key = key;
  auto session = tls::Session::Create(
      options, {[fd](const void* data, size_t nbytes) {
                  return SendNow(fd, data, nbytes);
                },
                [fd](void* data, size_t nbytes) -> ssize_t {
                  const ssize_t got = recv(fd, data, nbytes, MSG_DONTWAIT);
                  if (got > 0) return got;
                  const bool later =
                      got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK ||
                                  errno == EINTR);
                  return later ? 0 : kBroken;
                }});
  RING_KERAS_RETURN_IF_ERROR(session.status());
  peer.tls_ = std::move(session.value());
  return peer;
}

void PeerSocket::Close() {
  tls_.reset();
  socket_.Close();
}

StatusOr<size_t> PeerSocket::Send(std::string_view bytes) {
  ssize_t sent = 0;
  if (tls_ == nullptr) {
    sent = SendNow(fd(), bytes.data(), bytes.size());
  } else {
    tls_->Advance();
    const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    if (!bytes.empty()) sent = tls_->Write(&part, 1);
  }
  if (sent < 0) return Broke(EPIPE);
  return static_cast<size_t>(sent);
}

Status PeerSocket::Receive(std::string* bytes) {
  char buffer[kReadBytes];
  if (tls_ == nullptr) {
    const ssize_t got = recv(fd(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) bytes->append(buffer, static_cast<size_t>(got));
    if (got == 0) return Closed();
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return Broke(errno);
    }
    return Status::Ok();
  }
  tls_->Advance();
  const iovec part = {buffer, sizeof(buffer)};
  const ssize_t got = tls_->Read(&part, 1);
  if (got > 0) bytes->append(buffer, static_cast<size_t>(got));
  const Status& end = tls_->end();
  if (got > 0 || end.ok()) return Status::Ok();
  if (end.code() == StatusCode::kPeerLost) return Closed();
  return Status(end.code(), "broke: " + end.message());
}

}  // namespace ring_keras::rendezvous
