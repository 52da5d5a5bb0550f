#include "tf_ops/rendezvous/store_server_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tf_ops/rendezvous/connection_key.h"
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
  result.encrypts = options.encrypts;
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

StatusOr<std::unique_ptr<StoreServerLoop>> StoreServerLoop::Make(
    const TcpStoreServerOptions& options, FileDescriptor listener) {
  StatusOr<WakeUp> wake_up = WakeUp::Make();
  RING_KERAS_RETURN_IF_ERROR(wake_up.status());
  StatusOr<Selector> selector = Selector::Make();
  RING_KERAS_RETURN_IF_ERROR(selector.status());
  StatusOr<Selector> untrusted = Selector::Make();
  RING_KERAS_RETURN_IF_ERROR(untrusted.status());
  std::unique_ptr<StoreServerLoop> loop(new StoreServerLoop(
      options, std::move(listener), std::move(wake_up.value()),
      std::move(selector.value()), std::move(untrusted.value())));
  RING_KERAS_RETURN_IF_ERROR(
      loop->selector_.Watch(loop->wake_up_.get(), kWakeUp, EPOLLIN));
  RING_KERAS_RETURN_IF_ERROR(
      loop->selector_.Watch(loop->acceptor_.descriptor(), kAcceptor, EPOLLIN));
  return loop;
}

StoreServerLoop::StoreServerLoop(const TcpStoreServerOptions& options,
                                 FileDescriptor listener, WakeUp wake_up,
                                 Selector selector, Selector untrusted)
    : options_(options),
      wake_up_(std::move(wake_up)),
      tick_s_(TickSeconds(options.heartbeat_timeout_s)),
      selector_(std::move(selector)),
      acceptor_(AcceptorOptions(options), std::move(listener),
                std::move(untrusted),
                [this](const HandshakeParty& peer, const std::string& address) {
                  return Admit(peer, address);
                }),
      members_(static_cast<size_t>(options.size)),
      gathers_(options.size),
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
  const auto ready = selector_.Wait(stopping ? 0 : PollTimeoutMs());
  if (!ready.ok()) {
    Log(LogLevel::kError, StrCat("the store ends: ", ready.status().message()));
    return false;
  }
  wake_up_.Clear();
  TakeExitReports();

  // Connections before the clock: what came while this process was stopped
  // counts before silence is judged.
  for (const auto& [id, events] : ready.value()) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    Touch(*found->second);
    if (events & ~EPOLLOUT) Serve(*found->second);
  }
  Welcome(acceptor_.Serve());
  if (next_tick_.Expired()) Tick();
  // The end waits for nothing more: what is known now is the verdict.
  AnnounceEvents(stopping ? RankLedger::TimePoint::max()
                          : Deadline::Clock::now());
  FinishTouched();
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
  for (TrustedConnection& trusted : admitted) {
    const uint64_t id = next_id_++;
    const int fd = trusted.socket.get();
    StatusOr<PeerSocket> socket =
        Secure(std::move(trusted.socket), trusted.peer.rank);
    auto& connection = connections_[id];
    connection = std::make_unique<StoreConnection>(
        id, socket.ok() ? std::move(socket.value()) : PeerSocket(),
        trusted.peer.rank, std::move(trusted.address),
        Deadline::After(options_.handshake_timeout_s));
    members_[connection->rank()] = connection.get();
    connection->watched_events = connection->Events();
    const Status status =
        socket.ok() ? selector_.Watch(fd, id, connection->watched_events)
                    : socket.status();
    if (!status.ok()) Drop(*connection, status.message());
  }
}

StatusOr<PeerSocket> StoreServerLoop::Secure(FileDescriptor socket, int rank) {
  if (!options_.encrypts) return PeerSocket(std::move(socket));
  return PeerSocket::Encrypted(
      std::move(socket), tls::Role::kServer,
      ConnectionKey(options_.token, Purpose::kStore, /*one_rank=*/-1, rank,
                    options_.generation, /*stream=*/0));
}

void StoreServerLoop::Serve(StoreConnection& connection) {
  const Status status = connection.Receive();
  if (!connection.IsMember()) {
    if (!status.ok()) connection.set_state(State::kClosed);
  } else if (status.ok()) {
    ServeFrames(connection);
  } else {
    CloseMember(connection,
                StrCat("its connection to the store ", status.message(),
                       " before it had left the job"),
                /*by_rank=*/status.code() == StatusCode::kPeerLost);
  }
}

// Nothing of the last one is left.
void StoreServerLoop::BeginGeneration() {
  gathers_ = GatherTable(options_.size);
  std::lock_guard<std::mutex> lock(mutex_);
  ended_.clear();
}

void StoreServerLoop::Drop(StoreConnection& connection,
                           const std::string& why) {
  warnings_.Warn(StrCat("the store dropped the connection from ",
                        connection.address(), ": ", why));
  CloseMember(connection, "the store dropped its connection: " + why,
              /*by_rank=*/false);
}

void StoreServerLoop::CloseMember(StoreConnection& connection,
                                  const std::string& how, bool by_rank) {
  Expel(connection);
  ledger_.Close(connection.rank(), how, by_rank, Deadline::Clock::now());
  connection.set_state(State::kClosed);
}

void StoreServerLoop::DropOverdue() {
  for (const auto& [id, connection] : connections_) {
    if (!connection->Overdue()) continue;
    Touch(*connection);
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
  DropOverdue();
  if (options_.heartbeat_timeout_s <= 0) return;
  bool hears_somebody = false;
  for (const auto& [id, connection] : connections_) {
    if (connection->state() != State::kReady) continue;
    const double silent_s = ++connection->silent_ticks * tick_s_;
    hears_somebody |= silent_s < options_.heartbeat_timeout_s / 2;
  }
  for (const auto& [id, connection] : connections_) {
    if (connection->state() != State::kReady) continue;
    const double limit_s = LimitOf(*connection, hears_somebody);
    if (connection->silent_ticks * tick_s_ >= limit_s) {
      ledger_.Silence(connection->rank(), limit_s);
    }
  }
}

// Who hears nobody is cut off itself, and the ranks may train on. When that is
// over, TCP may take as long again to try.
double StoreServerLoop::LimitOf(StoreConnection& connection,
                                bool hears_somebody) const {
  const double limit_s = options_.heartbeat_timeout_s;
  if (hears_somebody) return limit_s + 2 * connection.excused_ticks * tick_s_;
  ++connection.excused_ticks;
  return std::max(limit_s, options_.all_silent_timeout_s);
}

void StoreServerLoop::AnnounceEvents(RankLedger::TimePoint now) {
  const std::vector<RankEvent> fresh = ledger_.TakeEvents(now);
  if (fresh.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.insert(ended_.end(), fresh.begin(), fresh.end());
  }
  std::string news;
  for (const RankEvent& event : fresh) news += EncodeEvent(event);
  const auto shared = std::make_shared<const std::string>(std::move(news));
  // The ended rank too: it may be a stopped process that wakes up again, and
  // then it should know why it is cut off.
  for (const auto& [id, connection] : connections_) {
    if (connection->state() == State::kReady) Send(*connection, shared);
  }
  for (const RankEvent& event : fresh) {
    if (StoreConnection* member = MemberOf(event.rank)) {
      Expel(*member);
      // It may hear of it when the network is back, and then says the same.
      member->Drain(std::max(kDrainTimeoutS, options_.heartbeat_timeout_s));
    }
  }
  FailWaits();
}

void StoreServerLoop::FailWaits() {
  for (const GatherTable::Waiter& waiter : gathers_.TakeAllParked()) {
    if (StoreConnection* member = MemberOf(waiter.rank)) {
      Send(*member,
           EncodeError(waiter.request_id, EndedRankError(waiter.topic)));
    }
  }
}

void StoreServerLoop::Expel(StoreConnection& connection) {
  gathers_.CancelAll(connection.rank());
  if (members_[connection.rank()] == &connection) {
    members_[connection.rank()] = nullptr;
  }
  Touch(connection);
}

void StoreServerLoop::Send(StoreConnection& connection, std::string bytes) {
  Send(connection, std::make_shared<const std::string>(std::move(bytes)));
}

void StoreServerLoop::Send(StoreConnection& connection,
                           std::shared_ptr<const std::string> bytes) {
  connection.Queue(std::move(bytes));
  Touch(connection);
}

void StoreServerLoop::FinishTouched() {
  for (const uint64_t id : std::exchange(touched_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;  // Touched twice.
    StoreConnection& connection = *found->second;
    connection.Flush();
    if (connection.state() == State::kClosed) {
      selector_.Forget(connection.fd());
      connections_.erase(found);
    } else if (const uint32_t events = connection.Events();
               events != connection.watched_events) {
      selector_.Change(connection.fd(), id, events);
      connection.watched_events = events;
    }
  }
}

}  // namespace ring_keras::rendezvous
