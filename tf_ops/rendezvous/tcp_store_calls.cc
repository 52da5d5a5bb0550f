// What a rank asks of the store, and waits for.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/rendezvous/gathered_values.h"
#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/tcp_store.h"

namespace ring_keras {
namespace {

using rendezvous::Frame;
using rendezvous::FrameType;

// "rank 3 of 4", "ranks 1, 2 of 4".
std::string DescribeRanks(const std::vector<int>& ranks, int size) {
  constexpr size_t kMostNamed = 10;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kMostNamed; ++i) {
    text += StrCat(i > 0 ? ", " : "", ranks[i]);
  }
  if (ranks.size() > kMostNamed) {
    text += StrCat(" and ", ranks.size() - kMostNamed, " more");
  }
  return StrCat(text, " of ", size);
}

}  // namespace

StatusOr<std::vector<std::string>> TcpStore::Gather(const std::string& topic,
                                                    const std::string& value,
                                                    Deadline deadline) {
  RING_KERAS_RETURN_IF_ERROR(rendezvous::CheckTopic(topic));
  RING_KERAS_RETURN_IF_ERROR(rendezvous::CheckValue(topic, value));
  Frame request;
  request.type = FrameType::kGather;
  request.name = topic;
  request.payload = value;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto started = Start(request);
  RING_KERAS_RETURN_IF_ERROR(started.status());
  Call& call = *started.value();
  const auto is_done = [&] { return call.done; };
  Status status = WaitFor(lock, deadline, is_done);
  if (!status.ok()) Cancel(request.request_id);
  // The store knows who is missing, and says so.
  if (status.code() == StatusCode::kDeadlineExceeded) {
    status = WaitFor(lock, Deadline::After(kDrainTimeoutS), is_done);
  }
  if (!status.ok()) {
    calls_.erase(request.request_id);
    if (status.code() != StatusCode::kDeadlineExceeded) return status;
    return Status(StatusCode::kPeerLost, ErrorCode::kStoreGone,
                  StrCat("the store at ", server_, " does not answer rank ",
                         rank_, ". Is the launcher stopped?"));
  }
  lock.unlock();
  if (!call.missing.empty()) {
    return Status(StatusCode::kDeadlineExceeded,
                  DescribeRanks(call.missing, size_));
  }
  RING_KERAS_RETURN_IF_ERROR(call.status);
  auto values =
      rendezvous::DecodeValues(call.value, static_cast<size_t>(size_));
  if (values.ok()) return values;
  return Status(StatusCode::kInternal,
                StrCat("the answer of the store at ", server_, " to rank ",
                       rank_, " is not that of ", size_,
                       " ranks: was another number of them given to the "
                       "launcher than in RING_KERAS_SIZE?"));
}

Status TcpStore::Pause(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Status status =
      WaitFor(lock, deadline, [&] { return !events_.empty() || !gone_.ok(); });
  if (status.code() == StatusCode::kDeadlineExceeded) return Status::Ok();
  RING_KERAS_RETURN_IF_ERROR(status);
  if (!gone_.ok()) return gone_;
  return Status(StatusCode::kPeerLost, CauseOf(events_).description);
}

StatusOr<std::shared_ptr<TcpStore::Call>> TcpStore::Start(Frame& request) {
  if (IsOwnThread()) {
    return Status(StatusCode::kInternal,
                  "the watcher of a store must not call it");
  }
  if (left_) {
    return Status(StatusCode::kAborted,
                  StrCat("rank ", rank_, " has left the store"));
  }
  if (!gone_.ok()) return gone_;
  request.request_id = next_request_id_++;
  const auto call = std::make_shared<Call>();
  calls_[request.request_id] = call;
  Queue(request);
  return call;
}

void TcpStore::Cancel(uint64_t request_id) {
  Frame cancel;
  cancel.type = FrameType::kCancel;
  cancel.request_id = request_id;
  Queue(cancel);
}

Status TcpStore::WaitFor(std::unique_lock<std::mutex>& lock, Deadline deadline,
                         const std::function<bool()>& is_over) {
  while (!is_over()) {
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded, "no answer");
    }
    changed_.wait_for(lock,
                      std::chrono::duration<double>(deadline.SliceSeconds()));
    if (is_over()) break;
    lock.unlock();
    const bool interrupted = deadline.Interrupted();
    lock.lock();
    if (interrupted) return Interrupted();
  }
  return Status::Ok();
}

}  // namespace ring_keras
