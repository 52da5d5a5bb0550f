#include "tf_ops/rendezvous/store_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {

StoreConnection::StoreConnection(FileDescriptor fd, int rank,
                                 std::string address, Deadline deadline)
    : fd_(std::move(fd)),
      rank_(rank),
      address_(std::move(address)),
      deadline_(deadline) {}

void StoreConnection::Drain() {
  state_ = State::kDraining;
  deadline_ = Deadline::After(kDrainTimeoutS);
}

bool StoreConnection::Overdue() const {
  return state_ != State::kReady && deadline_.Expired();
}

short StoreConnection::PollEvents() const {
  short events = 0;
  if (IsMember() && queued_.size() < kMaxQueuedBytes) events |= POLLIN;
  if (!queued_.empty()) events |= POLLOUT;
  return events;
}

StatusOr<std::string> StoreConnection::Receive() {
  std::string bytes(kReadBytes, '\0');
  const ssize_t got = recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
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
  if (state_ == State::kDraining && queued_.empty()) state_ = State::kClosed;
}

}  // namespace ring_keras::rendezvous
