// What the ranks of the job ask of the server.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/rendezvous/gathered_values.h"
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

void StoreServerLoop::ServeFrames(StoreConnection& connection) {
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
      std::string bytes = Encode(welcome);
      // A late rank learns what it missed; what is fresh comes to all.
      for (const RankEvent& event : ended_) bytes += EncodeEvent(event);
      Send(connection, std::move(bytes));
      connection.set_state(State::kReady);
      return Status::Ok();
    }
    case FrameType::kGather:
      HandleGather(connection, frame);
      return Status::Ok();
    case FrameType::kCancel:
      HandleCancel(connection, frame.request_id);
      return Status::Ok();
    case FrameType::kPing:
      return Status::Ok();
    case FrameType::kLeave:
      ledger_.Leave(rank, Cut(frame.payload));
      Expel(connection);
      connection.Drain(kDrainTimeoutS);
      return Status::Ok();
    default:
      return Status(StatusCode::kInvalidArgument,
                    "it broke the store's protocol: only the server sends "
                    "such a frame");
  }
}

void StoreServerLoop::HandleGather(StoreConnection& connection,
                                   const Frame& frame) {
  if (const Status ended = EndedRankError(frame.name); !ended.ok()) {
    Send(connection, EncodeError(frame.request_id, ended));
    return;
  }
  std::vector<GatherTable::Waiter> released;
  const auto values =
      gathers_.Give({connection.rank(), frame.request_id, frame.name},
                    frame.payload, &released);
  if (!values.ok()) {
    Send(connection, EncodeError(frame.request_id, values.status()));
    return;
  }
  if (!values.value().has_value()) return;
  // Many ranks get the same megabytes: they are here once.
  const auto all =
      std::make_shared<const std::string>(EncodeValues(*values.value()));
  for (const GatherTable::Waiter& waiter : released) {
    if (StoreConnection* member = MemberOf(waiter.rank)) {
      Send(*member, EncodeAnswerHeader(waiter.request_id, all->size()));
      Send(*member, all);
    }
  }
}

void StoreServerLoop::HandleCancel(StoreConnection& connection,
                                   uint64_t request_id) {
  const std::vector<int> missing =
      gathers_.Cancel(connection.rank(), request_id);
  if (missing.empty()) return;
  Send(connection, EncodeIncomplete(request_id, missing));
}

StoreConnection* StoreServerLoop::MemberOf(int rank) { return members_[rank]; }

Status StoreServerLoop::EndedRankError(const std::string& topic) const {
  const std::vector<RankEvent>& ended = ledger_.ended();
  if (ended.empty()) return Status::Ok();
  return Status(StatusCode::kPeerLost,
                StrCat(CauseOf(ended).description,
                       ". Not every rank took part in the exchange of '", topic,
                       "' at the store by then"));
}

}  // namespace ring_keras::rendezvous
