// What the ranks of the job ask of the server.
#include <algorithm>
#include <string>
#include <vector>

#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/store_server_loop.h"

namespace ring_keras::rendezvous {
namespace {

using State = StoreConnection::State;

int64_t PingIntervalMs(double heartbeat_timeout_s) {
  const double interval_s =
      heartbeat_timeout_s <= 0
          ? kPingIntervalS
          : std::min(kPingIntervalS, heartbeat_timeout_s / 4);
  return std::max<int64_t>(1, static_cast<int64_t>(interval_s * 1e3));
}

}  // namespace

void StoreServerLoop::ServeFrames(StoreConnection& connection,
                                  const std::string& bytes) {
  connection.reader().Append(bytes);
  while (connection.IsMember()) {
    Frame frame;
    StatusOr<bool> whole = connection.reader().Next(&frame);
    if (whole.ok() && !whole.value()) return;
    const Status status =
        whole.ok() ? Handle(connection, frame) : whole.status();
    if (!status.ok()) Drop(connection, status.message());
  }
}

Status StoreServerLoop::Handle(StoreConnection& connection,
                               const Frame& frame) {
  const int rank = connection.rank();
  const bool naming = connection.state() == State::kNaming;
  if (naming != (frame.type == FrameType::kHello)) {
    return Status(StatusCode::kInvalidArgument,
                  "it broke the store's protocol: hello must come first, and "
                  "once");
  }
  switch (frame.type) {
    case FrameType::kHello: {
      ledger_.Name(rank, frame.name, frame.number);
      Frame welcome;
      welcome.type = FrameType::kWelcome;
      welcome.request_id = options_.generation + ledger_.restarts();
      welcome.number = PingIntervalMs(options_.heartbeat_timeout_s);
      connection.Queue(Encode(welcome));
      // A late rank learns what it missed; what is fresh comes to all.
      for (const RankEvent& event : ended_) {
        connection.Queue(EncodeEvent(event));
      }
      connection.set_state(State::kReady);
      return Status::Ok();
    }
    case FrameType::kSet:
      HandleSet(connection, frame);
      return Status::Ok();
    case FrameType::kGet:
      HandleGet(connection, frame);
      return Status::Ok();
    case FrameType::kCancel:
      keys_.Cancel(rank, frame.request_id);
      return Status::Ok();
    case FrameType::kPing:
      return Status::Ok();
    case FrameType::kLeave:
      ledger_.Leave(rank, Cut(frame.payload));
      keys_.CancelAll(rank);
      connection.Drain();
      return Status::Ok();
    default:
      return Status(StatusCode::kInvalidArgument,
                    "it broke the store's protocol: only the server sends "
                    "such a frame");
  }
}

void StoreServerLoop::HandleSet(StoreConnection& connection,
                                const Frame& frame) {
  std::vector<KeyTable::Waiter> released;
  const Status status = keys_.Set(frame.name, frame.payload, &released);
  connection.Queue(status.ok() ? EncodeAnswer(frame.request_id, "")
                               : EncodeError(frame.request_id, status));
  for (const KeyTable::Waiter& waiter : released) {
    if (StoreConnection* member = MemberOf(waiter.rank)) {
      member->Queue(EncodeAnswer(waiter.request_id, frame.payload));
    }
  }
}

void StoreServerLoop::HandleGet(StoreConnection& connection,
                                const Frame& frame) {
  if (const std::string* value = keys_.Find(frame.name)) {
    connection.Queue(EncodeAnswer(frame.request_id, *value));
    return;
  }
  Status status = EndedRankError(frame.name);
  if (status.ok()) {
    status = keys_.Park({connection.rank(), frame.request_id, frame.name});
  }
  if (!status.ok()) connection.Queue(EncodeError(frame.request_id, status));
}

StoreConnection* StoreServerLoop::MemberOf(int rank) {
  for (const auto& connection : connections_) {
    if (connection->IsMember() && connection->rank() == rank) {
      return connection.get();
    }
  }
  return nullptr;
}

Status StoreServerLoop::EndedRankError(const std::string& key) const {
  const std::vector<RankEvent>& ended = ledger_.ended();
  if (ended.empty()) return Status::Ok();
  // A death explains more than those who leave after it.
  const auto lost =
      std::find_if(ended.begin(), ended.end(), [](const RankEvent& event) {
        return event.kind == RankEvent::Kind::kLost;
      });
  const RankEvent& cause = lost == ended.end() ? ended.front() : *lost;
  return Status(StatusCode::kPeerLost,
                StrCat(cause.description, ". Key '", key,
                       "' of the store was not set by then"));
}

}  // namespace ring_keras::rendezvous
