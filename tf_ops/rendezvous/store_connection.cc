#include "tf_ops/rendezvous/store_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;

}  // namespace

StoreConnection::StoreConnection(FileDescriptor fd, ServerHandshake handshake,
                                 Deadline deadline)
    : fd_(std::move(fd)),
      address_(PeerAddress(fd_.get())),
      handshake_(std::move(handshake)),
      deadline_(deadline) {}

void StoreConnection::BeginFarewell() {
  state_ = State::kFarewell;
  deadline_ = Deadline::After(kFarewellTimeoutS);
}

bool StoreConnection::Overdue() const {
  return state_ != State::kReady && deadline_.Expired();
}

short StoreConnection::PollEvents() const {
  short events = 0;
  const bool reads = state_ == State::kHandshake || IsMember();
  if (reads && queued_.size() < kMaxQueuedBytes) events |= POLLIN;
  if (!queued_.empty()) events |= POLLOUT;
  return events;
}

StatusOr<std::string> StoreConnection::Receive() {
  // Not a byte beyond the handshake, so that its end is a frame's start.
  const size_t limit =
      state_ == State::kHandshake ? handshake_.bytes_wanted() : kChunkBytes;
  std::string bytes(limit, '\0');
  const ssize_t got = recv(fd(), bytes.data(), limit, MSG_DONTWAIT);
  if (got == 0) return Status(StatusCode::kPeerLost, "closed");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      return std::string();
    }
    return Status(StatusCode::kPeerLost,
                  StrCat("broke (", ErrnoMessage(errno), ")"));
  }
  silent_ticks = 0;
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

void StoreConnection::Flush() {
  while (!queued_.empty()) {
    const ssize_t sent =
        send(fd(), queued_.data(), queued_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      queued_.erase(0, static_cast<size_t>(sent));
    } else if (errno == EINTR) {
      continue;
    } else {
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      if (!full) queued_.clear();
      break;
    }
  }
  if (state_ == State::kFarewell && queued_.empty()) state_ = State::kClosed;
}

}  // namespace ring_keras::rendezvous
