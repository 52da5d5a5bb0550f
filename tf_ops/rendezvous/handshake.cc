#include "tf_ops/rendezvous/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>

#include "tf_ops/common/socket.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {
namespace {

Status ConnectionBroke(int errno_value) {
  return Status(StatusCode::kPeerLost,
                StrCat("the connection broke during the handshake: ",
                       ErrnoMessage(errno_value)));
}

Status TooSlow() {
  return Status(StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
                "too slow: the peer did not finish the handshake in time");
}

Status Await(int fd, short events, Deadline deadline) {
  StatusOr<bool> ready = WaitUntilReady(fd, events, deadline);
  RING_KERAS_RETURN_IF_ERROR(ready.status());
  return ready.value() ? Status::Ok() : TooSlow();
}

Status SendAll(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RING_KERAS_RETURN_IF_ERROR(Await(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return ConnectionBroke(errno);
    }
  }
  return Status::Ok();
}

// At least one byte, at most `limit`.
StatusOr<std::string> ReceiveSome(int fd, size_t limit, Deadline deadline) {
  std::string bytes(limit, '\0');
  while (true) {
    // Before recv, or a peer that drips single bytes would never be too slow.
    RING_KERAS_RETURN_IF_ERROR(Await(fd, POLLIN, deadline));
    const ssize_t got = recv(fd, bytes.data(), limit, MSG_DONTWAIT);
    if (got > 0) {
      bytes.resize(static_cast<size_t>(got));
      return bytes;
    }
    if (got == 0) {
      return Status(StatusCode::kPeerLost,
                    "the peer closed the connection during the handshake");
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return ConnectionBroke(errno);
    }
  }
}

Status ReceiveUntilProven(int fd, ClientHandshake& handshake,
                          Deadline deadline) {
  while (!handshake.proven()) {
    StatusOr<std::string> bytes =
        ReceiveSome(fd, handshake.bytes_wanted(), deadline);
    RING_KERAS_RETURN_IF_ERROR(bytes.status());
    std::string reply;
    const Status status = handshake.Receive(bytes.value(), &reply);
    // A refusal must go out too; why the peer failed matters more than whether
    // it could be told.
    const Status sent = SendAll(fd, reply, deadline);
    RING_KERAS_RETURN_IF_ERROR(status);
    RING_KERAS_RETURN_IF_ERROR(sent);
  }
  return Status::Ok();
}

}  // namespace

StatusOr<HandshakeParty> HandshakeAsClient(int fd, Purpose purpose,
                                           const HandshakeParty& self,
                                           int expected_peer_rank,
                                           const std::string& token,
                                           Deadline deadline) {
  RING_KERAS_RETURN_IF_ERROR(CheckToken(token));
  ClientHandshake handshake(purpose, self, expected_peer_rank, token);
  StatusOr<std::string> hello = handshake.Start();
  RING_KERAS_RETURN_IF_ERROR(hello.status());
  RING_KERAS_RETURN_IF_ERROR(SendAll(fd, hello.value(), deadline));
  RING_KERAS_RETURN_IF_ERROR(ReceiveUntilProven(fd, handshake, deadline));
  return handshake.server();
}

Status CheckToken(const std::string& token) {
  if (token.size() == kTokenBytes) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                StrCat("the job's token must have ", kTokenBytes,
                       " bytes, came ", token.size()));
}

}  // namespace ring_keras
