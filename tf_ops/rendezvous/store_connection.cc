#include "tf_ops/rendezvous/store_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {

StoreConnection::StoreConnection(uint64_t id, FileDescriptor fd, int rank,
                                 std::string address, Deadline deadline)
    : id_(id),
      fd_(std::move(fd)),
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

uint32_t StoreConnection::Events() const {
  uint32_t events = 0;
  if (IsMember() && queued_nbytes_ < kMaxQueuedBytes) events |= EPOLLIN;
  if (!queued_.empty()) events |= EPOLLOUT;
  return events;
}

Status StoreConnection::Receive() {
  char bytes[kReadBytes];
  const ssize_t got = recv(fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got == 0) return Status(StatusCode::kPeerLost, "closed");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      return Status::Ok();
    }
    return Status(StatusCode::kPeerLost,
                  StrCat("broke (", ErrnoMessage(errno), ")"));
  }
  silent_ticks = 0;
  reader_.Append(std::string_view(bytes, static_cast<size_t>(got)));
  return Status::Ok();
}

void StoreConnection::Queue(std::shared_ptr<const std::string> bytes) {
  if (bytes->empty()) return;
  queued_nbytes_ += bytes->size();
  queued_.push_back(std::move(bytes));
}

void StoreConnection::Flush() {
  while (!queued_.empty()) {
    const std::string& first = *queued_.front();
    const ssize_t sent =
        send(fd(), first.data() + sent_nbytes_, first.size() - sent_nbytes_,
             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      // What the rank says is not read meanwhile; that it takes more tells.
      if (queued_nbytes_ >= kMaxQueuedBytes) silent_ticks = 0;
      sent_nbytes_ += static_cast<size_t>(sent);
      queued_nbytes_ -= static_cast<size_t>(sent);
      if (sent_nbytes_ < first.size()) continue;
      queued_.pop_front();
      sent_nbytes_ = 0;
    } else if (errno == EINTR) {
      continue;
    } else {
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      if (!full) {
        queued_.clear();
        queued_nbytes_ = 0;
        sent_nbytes_ = 0;
      }
      break;
    }
  }
  if (state_ == State::kDraining && queued_.empty()) state_ = State::kClosed;
}

}  // namespace ring_keras::rendezvous
