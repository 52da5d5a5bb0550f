#include "tf_ops/rendezvous/store_server_loop.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

using State = StoreConnection::State;

constexpr double kMaxTickS = 0.5;

// Fine enough that a silent rank is found at most a twentieth too late.
double TickSeconds(double heartbeat_timeout_s) {
  if (heartbeat_timeout_s <= 0) return kMaxTickS;
  return std::min(kMaxTickS, heartbeat_timeout_s / 20);
}

const char* Explain(Refusal refusal) {
  switch (refusal) {
    case Refusal::kRankTaken:
      return "that rank has a live connection already";
    case Refusal::kRankEnded:
      return "that rank has ended in this generation";
    default:
      return "the job has no such rank";
  }
}

}  // namespace

StoreServerLoop::StoreServerLoop(const TcpStoreServerOptions& options,
                                 FileDescriptor listener, WakeUp wake_up)
    : options_(options),
      listener_(std::move(listener)),
      wake_up_(std::move(wake_up)),
      tick_s_(TickSeconds(options.heartbeat_timeout_s)),
      ledger_(options.size),
      next_tick_(Deadline::After(tick_s_)) {}

void StoreServerLoop::Run() {
  while (Turn()) {
  }
}

void StoreServerLoop::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_up_.Notify();
}

void StoreServerLoop::ReportExit(int rank, const std::string& how) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exit_reports_.emplace_back(rank, how);
  }
  wake_up_.Notify();
}

std::vector<RankEvent> StoreServerLoop::ended_ranks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

bool StoreServerLoop::Turn() {
  bool stopping = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping = stop_;
  }
  std::vector<pollfd> entries = {
      {wake_up_.get(), POLLIN, 0},
      {accepting_ ? listener_.get() : -1, POLLIN, 0}};
  for (const auto& connection : connections_) {
    entries.push_back({connection->fd(), connection->PollEvents(), 0});
  }
  const int ready =
      poll(entries.data(), entries.size(), stopping ? 0 : PollTimeoutMs());
  if (ready < 0 && errno != EINTR) {
    Log(LogLevel::kError,
        StrCat("the store ends: poll failed: ", ErrnoMessage(errno)));
    return false;
  }
  wake_up_.Clear();
  TakeExitReports();

  // Connections before the clock: what came while this process was stopped
  // counts before silence is judged.
  for (size_t i = 2; ready > 0 && i < entries.size(); ++i) {
    StoreConnection& connection = *connections_[i - 2];
    if (entries[i].revents & ~POLLOUT) Serve(connection);
  }
  if (ready > 0 && entries[1].revents != 0) AcceptAll();
  if (next_tick_.Expired()) Tick();
  DropOverdue();
  // The end waits for nothing more: what is known now is the verdict.
  AnnounceEvents(stopping ? RankLedger::TimePoint::max()
                          : Deadline::Clock::now());

  for (const auto& connection : connections_) connection->Flush();
  std::erase_if(connections_, [](const auto& connection) {
    return connection->state() == State::kClosed;
  });
  return !stopping;
}

int StoreServerLoop::PollTimeoutMs() const {
  double wait_s = next_tick_.RemainingSeconds();
  if (const auto due = ledger_.NextDue()) {
    const std::chrono::duration<double> left = *due - Deadline::Clock::now();
    wait_s = std::min(wait_s, std::max(0.0, left.count()));
  }
  return static_cast<int>(wait_s * 1e3 + 0.999);
}

void StoreServerLoop::TakeExitReports() {
  std::vector<std::pair<int, std::string>> reports;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reports.swap(exit_reports_);
  }
  for (const auto& [rank, how] : reports) {
    ledger_.ReportExit(rank, how, Deadline::Clock::now());
  }
}

void StoreServerLoop::AcceptAll() {
  while (true) {
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Out of descriptors: rest until the next tick, or poll() would spin.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
          errno == ENOMEM) {
        warnings_.Warn(StrCat("the store cannot accept a connection: ",
                              ErrnoMessage(errno)));
        accepting_ = false;
      }
      return;
    }
    DisableNagle(fd.get());
    MakeRoomForStranger();
    connections_.push_back(std::make_unique<StoreConnection>(
        std::move(fd),
        ServerHandshake(Purpose::kStore, /*self_rank=*/-1, options_.generation,
                        options_.token),
        Deadline::After(options_.handshake_timeout_s)));
  }
}

void StoreServerLoop::MakeRoomForStranger() {
  const auto is_stranger = [](const auto& connection) {
    return connection->state() == State::kHandshake;
  };
  const auto strangers = static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(), is_stranger));
  if (strangers <
      static_cast<size_t>(options_.size) + kSpareUnauthenticatedConnections) {
    return;
  }
  // The oldest: a rank needs two round trips, so what has waited longest is the
  // least likely to be one; and a rank that is hit tries again.
  const auto oldest =
      std::find_if(connections_.begin(), connections_.end(), is_stranger);
  Drop(**oldest, StrCat("too many unauthenticated connections (", strangers,
                        "), this is the oldest"));
}

void StoreServerLoop::Serve(StoreConnection& connection) {
  const bool stranger = connection.state() == State::kHandshake;
  if (!stranger && !connection.IsMember()) {
    // A farewell that poll() reports is one whose peer has gone.
    connection.set_state(State::kClosed);
    return;
  }
  StatusOr<std::string> bytes = connection.Receive();
  if (!bytes.ok()) {
    if (stranger) {
      Drop(connection, "its connection " + bytes.status().message() +
                           " before the handshake was done");
    } else {
      CloseMember(connection,
                  StrCat("its connection to the store ",
                         bytes.status().message(), " without a goodbye"));
    }
  } else if (stranger) {
    ServeHandshake(connection, bytes.value());
  } else {
    ServeFrames(connection, bytes.value());
  }
}

void StoreServerLoop::ServeHandshake(StoreConnection& connection,
                                     const std::string& bytes) {
  ServerHandshake& handshake = connection.handshake();
  std::string reply;
  const Status status = handshake.Receive(bytes, &reply);
  connection.Queue(reply);
  if (!status.ok()) {
    Drop(connection, status.message());
    return;
  }
  if (!handshake.proven()) return;

  const int rank = handshake.client().rank;
  const Refusal refusal = ledger_.Admit(rank, connection.address());
  if (refusal == Refusal::kNone) {
    connection.Queue(handshake.Accept());
    connection.set_state(State::kNaming);
  } else {
    connection.Queue(handshake.Refuse(refusal));
    Drop(connection,
         StrCat("it proved to be rank ", rank, ", but ", Explain(refusal)));
  }
}

void StoreServerLoop::Drop(StoreConnection& connection,
                           const std::string& why) {
  warnings_.Warn(StrCat("the store dropped the connection from ",
                        connection.address(), ": ", why));
  if (connection.IsMember()) {
    CloseMember(connection, "the store dropped its connection: " + why);
  } else {
    connection.BeginFarewell();  // A refusal may still have to go out.
  }
}

void StoreServerLoop::CloseMember(StoreConnection& connection,
                                  const std::string& how) {
  keys_.CancelAll(connection.rank());
  ledger_.Close(connection.rank(), how, Deadline::Clock::now());
  connection.set_state(State::kClosed);
}

void StoreServerLoop::DropOverdue() {
  for (const auto& connection : connections_) {
    if (!connection->Overdue()) continue;
    if (connection->state() == State::kFarewell) {
      connection->set_state(State::kClosed);
    } else {
      Drop(*connection, StrCat("too slow: the handshake was not done after ",
                               options_.handshake_timeout_s, " s"));
    }
  }
}

// Counts turns of this thread, not time: after a pause of the whole machine, or
// of this process, one tick has passed however long it was, and nobody is
// blamed.
void StoreServerLoop::Tick() {
  next_tick_ = Deadline::After(tick_s_);
  accepting_ = true;
  warnings_.CloseWindow();
  if (options_.heartbeat_timeout_s <= 0) return;
  for (const auto& connection : connections_) {
    if (connection->state() != State::kReady) continue;
    ++connection->silent_ticks;
    if (connection->silent_ticks * tick_s_ >= options_.heartbeat_timeout_s) {
      ledger_.Silence(connection->rank(), options_.heartbeat_timeout_s);
    }
  }
}

void StoreServerLoop::AnnounceEvents(RankLedger::TimePoint now) {
  const std::vector<RankEvent> fresh = ledger_.TakeEvents(now);
  if (fresh.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.insert(ended_.end(), fresh.begin(), fresh.end());
  }
  for (const RankEvent& event : fresh) {
    // The ended rank too: it may be a stopped process that wakes up again, and
    // then it should know why it is cut off.
    for (const auto& connection : connections_) {
      if (connection->state() == State::kReady) {
        connection->Queue(EncodeEvent(event));
      }
    }
  }
  for (const RankEvent& event : fresh) {
    if (StoreConnection* member = MemberOf(event.rank)) {
      keys_.CancelAll(event.rank);
      member->BeginFarewell();
    }
  }
  for (const KeyTable::Waiter& waiter : keys_.TakeAllParked()) {
    if (StoreConnection* member = MemberOf(waiter.rank)) {
      member->Queue(EncodeError(waiter.request_id, EndedRankError(waiter.key)));
    }
  }
}

}  // namespace ring_keras::rendezvous
