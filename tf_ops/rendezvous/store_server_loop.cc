#include "tf_ops/rendezvous/store_server_loop.h"

#include <poll.h>

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

constexpr char kOwner[] = "the store";

HandshakeAcceptorOptions AcceptorOptions(const TcpStoreServerOptions& options) {
  HandshakeAcceptorOptions result;
  result.owner = kOwner;
  result.purpose = Purpose::kStore;
  result.generation = options.generation;
  result.token = options.token;
  result.handshake_timeout_s = options.handshake_timeout_s;
  result.max_untrusted =
      static_cast<size_t>(options.size) + kSpareUnauthenticatedConnections;
  return result;
}

const char* Explain(Refusal refusal) {
  switch (refusal) {
    case Refusal::kRankTaken:
      return "that rank has a live connection already";
    case Refusal::kRankEnded:
      return "that rank's process has ended";
    default:
      return "the job has no such rank";
  }
}

}  // namespace

StoreServerLoop::StoreServerLoop(const TcpStoreServerOptions& options,
                                 FileDescriptor listener, WakeUp wake_up)
    : options_(options),
      wake_up_(std::move(wake_up)),
      tick_s_(TickSeconds(options.heartbeat_timeout_s)),
      acceptor_(AcceptorOptions(options), std::move(listener),
                [this](const HandshakeParty& peer, const std::string& address) {
                  return Admit(peer, address);
                }),
      ledger_(options.size),
      warnings_(kOwner),
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

int StoreServerLoop::connected_ranks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return connected_ranks_;
}

bool StoreServerLoop::Turn() {
  bool stopping = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping = stop_;
    connected_ranks_ = ledger_.connected_ranks();
  }
  std::vector<pollfd> entries = {{wake_up_.get(), POLLIN, 0}};
  for (const auto& connection : connections_) {
    entries.push_back({connection->fd(), connection->PollEvents(), 0});
  }
  const size_t first_untrusted = entries.size();
  acceptor_.AddPollEntries(&entries);
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
  for (size_t i = 1; ready > 0 && i < first_untrusted; ++i) {
    StoreConnection& connection = *connections_[i - 1];
    if (entries[i].revents & ~POLLOUT) Serve(connection);
  }
  Welcome(acceptor_.Serve(entries.data() + first_untrusted));
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
  // A tick is short: untrusted peers are looked at often enough.
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

Admission StoreServerLoop::Admit(const HandshakeParty& peer,
                                 const std::string& address) {
  const uint64_t restarts = ledger_.restarts();
  const Refusal refusal = ledger_.Admit(peer.rank, address);
  if (ledger_.restarts() != restarts) BeginGeneration();
  if (refusal == Refusal::kNone) return {};
  return {refusal, Explain(refusal), ledger_.RemainingRank()};
}

void StoreServerLoop::Welcome(std::vector<TrustedConnection> admitted) {
  for (TrustedConnection& connection : admitted) {
    connections_.push_back(std::make_unique<StoreConnection>(
        std::move(connection.socket), connection.peer.rank,
        std::move(connection.address),
        Deadline::After(options_.handshake_timeout_s)));
  }
}

void StoreServerLoop::Serve(StoreConnection& connection) {
  if (!connection.IsMember()) {
    // One that drains and is reported by poll() has lost its peer.
    connection.set_state(State::kClosed);
    return;
  }
  StatusOr<std::string> bytes = connection.Receive();
  if (bytes.ok()) {
    ServeFrames(connection, bytes.value());
  } else {
    CloseMember(connection,
                StrCat("its connection to the store ", bytes.status().message(),
                       " before it had left the job"));
  }
}

// Nothing of the last one is left.
void StoreServerLoop::BeginGeneration() {
  keys_ = KeyTable();
  std::lock_guard<std::mutex> lock(mutex_);
  ended_.clear();
}

void StoreServerLoop::Drop(StoreConnection& connection,
                           const std::string& why) {
  warnings_.Warn(StrCat("the store dropped the connection from ",
                        connection.address(), ": ", why));
  CloseMember(connection, "the store dropped its connection: " + why);
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
    if (connection->state() == State::kDraining) {
      connection->set_state(State::kClosed);
    } else {
      Drop(*connection, StrCat("too slow: it did not say its name within ",
                               options_.handshake_timeout_s, " s"));
    }
  }
}

// Counts turns of this thread, not time: after a pause of the whole machine, or
// of this process, one tick has passed however long it was, and nobody is
// blamed.
void StoreServerLoop::Tick() {
  next_tick_ = Deadline::After(tick_s_);
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
      member->Drain();
    }
  }
  for (const KeyTable::Waiter& waiter : keys_.TakeAllParked()) {
    if (StoreConnection* member = MemberOf(waiter.rank)) {
      member->Queue(EncodeError(waiter.request_id, EndedRankError(waiter.key)));
    }
  }
}

}  // namespace ring_keras::rendezvous
