#include "tf_ops/rendezvous/store_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <string_view>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {

StoreConnection::StoreConnection(uint64_t id, PeerSocket socket, int rank,
                                 std::string address, Deadline deadline)
    : id_(id),
      socket_(std::move(socket)),
      rank_(rank),
      address_(std::move(address)),
      deadline_(deadline) {}

void StoreConnection::Drain(double timeout_s) {
  state_ = State::kDraining;
  deadline_ = Deadline::After(timeout_s);
}

bool StoreConnection::Overdue() const {
  return state_ != State::kReady && deadline_.Expired();
}

uint32_t StoreConnection::Events() const {
  uint32_t events = 0;
  if (!IsMember() || queued_nbytes_ < kMaxQueuedBytes) events |= EPOLLIN;
  if (socket_.AwaitsRoom(!queued_.empty())) events |= EPOLLOUT;
  return events;
}

Status StoreConnection::Receive() {
  std::string bytes;
  RING_KERAS_RETURN_IF_ERROR(socket_.Receive(&bytes));
  if (bytes.empty() || !IsMember()) return Status::Ok();
  silent_ticks = excused_ticks = 0;
  reader_.Append(bytes);
  return Status::Ok();
}

void StoreConnection::Queue(std::shared_ptr<const std::string> bytes) {
  if (bytes->empty()) return;
  queued_nbytes_ += bytes->size();
  queued_.push_back(std::move(bytes));
}

void StoreConnection::Flush() {
  while (true) {
    // With nothing to send too: the socket may hold back what it has taken.
    const std::string_view rest =
        queued_.empty()
            ? std::string_view()
            : std::string_view(*queued_.front()).substr(sent_nbytes_);
    const StatusOr<size_t> sent = socket_.Send(rest);
    if (!sent.ok()) {
      queued_.clear();
      queued_nbytes_ = 0;
      sent_nbytes_ = 0;
      break;
    }
    if (sent.value() == 0) break;
    // What the rank says is not read meanwhile; that it takes more tells.
    if (queued_nbytes_ >= kMaxQueuedBytes) silent_ticks = excused_ticks = 0;
    sent_nbytes_ += sent.value();
    queued_nbytes_ -= sent.value();
    if (sent.value() < rest.size()) continue;
    queued_.pop_front();
    sent_nbytes_ = 0;
  }
  if (state_ != State::kDraining || has_said_all_) return;
  if (!queued_.empty() || !socket_.drained()) return;
  has_said_all_ = true;
  shutdown(fd(), SHUT_WR);
}

}  // namespace ring_keras::rendezvous
