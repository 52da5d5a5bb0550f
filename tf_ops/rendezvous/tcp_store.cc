#include "tf_ops/rendezvous/tcp_store.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string_view>
#include <utility>

#include "tf_ops/rendezvous/connection_key.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {
namespace {

using rendezvous::Frame;
using rendezvous::FrameType;
using rendezvous::PeerSocket;

// Of thousands of ranks that wait for one to leave each asks more and more
// rarely, and not all at once.
constexpr double kConnectRetryS = 0.1;
constexpr double kMaxConnectRetryS = 1;
constexpr double kRetryGrowth = 1.3;

// Of a name with several addresses the first may be of no use for a while.
constexpr double kConnectAttemptS = 10;

// From half of `pause_s` to all of it.
double Jittered(double pause_s) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  return pause_s * std::uniform_real_distribution<double>(0.5, 1)(random);
}

// A connection whose two ends have proven themselves.
StatusOr<PeerSocket> ConnectAndProve(const TcpStoreOptions& options) {
  StatusOr<FileDescriptor> fd =
      ConnectOnce(options.host, options.port,
                  options.connect_deadline.Within(kConnectAttemptS));
  RING_KERAS_RETURN_IF_ERROR(fd.status());
  // The pings make sure that there is something to acknowledge.
  LimitUnacknowledged(fd.value().get(),
                      std::max(kAnswerTimeoutS, options.heartbeat_timeout_s +
                                                    kBeyondHeartbeatS));
  const HandshakeParty self = {options.rank, options.generation, 0,
                               options.encrypts};
  StatusOr<HandshakeParty> server = HandshakeAsClient(
      fd.value().get(), Purpose::kStore, self, /*expected_peer_rank=*/-1,
      options.token, options.connect_deadline);
  RING_KERAS_RETURN_IF_ERROR(server.status());
  if (!options.encrypts) return PeerSocket(std::move(fd.value()));
  return PeerSocket::Encrypted(
      std::move(fd.value()), tls::Role::kClient,
      ConnectionKey(options.token, Purpose::kStore, /*one_rank=*/-1,
                    options.rank, options.generation, /*stream=*/0));
}

// Tries again what time may heal: a launcher that is not there yet, or that is
// flooded with connections, or ranks that have not left yet.
StatusOr<PeerSocket> ConnectUntilDeadline(const TcpStoreOptions& options) {
  const std::string server = HostPort(options.host, options.port);
  Status remains;  // Who has not left; the latest news.
  for (double retry_s = kConnectRetryS; true;
       retry_s = std::min(retry_s * kRetryGrowth, kMaxConnectRetryS)) {
    StatusOr<PeerSocket> socket = ConnectAndProve(options);
    if (socket.ok()) return socket;
    const Status& status = socket.status();
    if (status.code() == StatusCode::kInterrupted) return status;
    if (status.code() == StatusCode::kUnauthenticated) {
      return Status(
          status.code(), status.error_code(),
          StrCat("rank ", options.rank, " cannot join through the store at ",
                 server, ": ", status.message()));
    }
    if (status.code() == StatusCode::kAborted) remains = status;
    if (options.connect_deadline.Expired()) {
      if (!remains.ok()) {
        return Status(StatusCode::kDeadlineExceeded,
                      ErrorCode::kStoreUnreachable, remains.message());
      }
      return Status(
          StatusCode::kDeadlineExceeded, ErrorCode::kStoreUnreachable,
          StrCat("rank ", options.rank, " could not reach the store at ",
                 server,
                 " within RING_KERAS_INIT_TIMEOUT_S: ", status.message(),
                 ". Is the launcher running, and its port "
                 "open to this host?"));
    }
    const double pause_s = std::min(
        Jittered(retry_s), options.connect_deadline.RemainingSeconds());
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
    if (options.connect_deadline.Interrupted()) return Interrupted();
  }
}

}  // namespace

StatusOr<std::unique_ptr<TcpStore>> ConnectTcpStore(
    const TcpStoreOptions& options) {
  RING_KERAS_RETURN_IF_ERROR(CheckToken(options.token));
  if (options.encrypts) {
    RING_KERAS_RETURN_IF_ERROR(tls::CheckAvailable());
  }
  StatusOr<PeerSocket> socket = ConnectUntilDeadline(options);
  RING_KERAS_RETURN_IF_ERROR(socket.status());
  StatusOr<rendezvous::WakeUp> wake_up = rendezvous::WakeUp::Make();
  RING_KERAS_RETURN_IF_ERROR(wake_up.status());
  std::unique_ptr<TcpStore> store(new TcpStore(
      options, std::move(socket.value()), std::move(wake_up.value())));
  RING_KERAS_RETURN_IF_ERROR(store->Introduce(options));
  return store;
}

TcpStore::TcpStore(const TcpStoreOptions& options, PeerSocket socket,
                   rendezvous::WakeUp wake_up)
    : rank_(options.rank),
      size_(options.size),
      server_(HostPort(options.host, options.port)),
      local_address_(LocalHost(socket.fd())),
      wake_up_(std::move(wake_up)),
      socket_(std::move(socket)),
      reader_(kMaxAnswerFrameBytes),
      thread_([this] { Run(); }) {}

TcpStore::~TcpStore() {
  Leave("shutdown");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_up_.Notify();
  thread_.join();
}

Status TcpStore::Introduce(const TcpStoreOptions& options) {
  std::unique_lock<std::mutex> lock(mutex_);
  Frame hello;
  hello.type = FrameType::kHello;
  hello.number = getpid();
  hello.name = options.host_name.substr(0, kMaxNameBytes);
  Queue(hello);
  const Status status =
      WaitFor(lock, options.connect_deadline.Within(kAnswerTimeoutS),
              [&] { return welcomed_ || !gone_.ok(); });
  if (!gone_.ok()) return gone_;
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return Status(
      StatusCode::kDeadlineExceeded, ErrorCode::kStoreUnreachable,
      StrCat("the store at ", server_, " took the connection of rank ", rank_,
             ", but did not welcome it in time"));
}

void TcpStore::Watch(std::function<void(const RankEvent&)> on_event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    watcher_ = std::move(on_event);
  }
  wake_up_.Notify();
}

void TcpStore::Leave(const std::string& reason) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!left_ && gone_.ok()) {
    Frame leave;
    leave.type = FrameType::kLeave;
    leave.payload = rendezvous::Cut(reason);
    Queue(leave);
    left_ = true;
    FailCalls(Status(StatusCode::kAborted,
                     StrCat("rank ", rank_, " left the store: ", reason)));
  }
  // The server closes the connection once it has read that. Were it closed
  // here, what is still unread could take the last frame down with it.
  if (IsOwnThread()) return;
  changed_.wait_for(lock, std::chrono::duration<double>(kDrainTimeoutS),
                    [&] { return !gone_.ok(); });
}

bool TcpStore::IsOwnThread() const {
  return std::this_thread::get_id() == thread_.get_id();
}

void TcpStore::Run() {
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
    }
    Turn();
  }
}

void TcpStore::Turn() {
  const auto events = static_cast<short>(
      socket_.AwaitsRoom(!sending_.empty()) ? POLLIN | POLLOUT : POLLIN);
  pollfd entries[] = {{wake_up_.get(), POLLIN, 0}, {socket_.fd(), events, 0}};
  const int ready = poll(entries, 2, PollTimeoutMs());
  wake_up_.Clear();
  // Before sending: a broken connection may still hold the store's last words.
  if (ready > 0 && (entries[1].revents & ~POLLOUT) != 0) Receive();
  if (socket_.valid()) Send();
  TellWatcher();
}

int TcpStore::PollTimeoutMs() const {
  if (!socket_.valid() || next_ping_ == TimePoint::max()) return -1;
  const std::chrono::duration<double> left =
      next_ping_ - Deadline::Clock::now();
  return static_cast<int>(std::max(0.0, left.count()) * 1e3 + 0.999);
}

void TcpStore::Send() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const TimePoint now = Deadline::Clock::now();
    if (now >= next_ping_) {
      if (!left_) Queue(Frame{FrameType::kPing, 0, 0, "", ""});
      next_ping_ = now + ping_interval_;
    }
    sending_ += queued_;
    queued_.clear();
  }
  while (true) {
    // With nothing to send too: the socket may hold back what it has taken.
    const StatusOr<size_t> sent = socket_.Send(sending_);
    // A broken connection is found by Receive().
    if (!sent.ok()) sending_.clear();
    if (!sent.ok() || sent.value() == 0) return;
    sending_.erase(0, sent.value());
  }
}

void TcpStore::Receive() {
  std::string bytes;
  const Status status = socket_.Receive(&bytes);
  if (!status.ok()) {
    const bool closed = status.code() == StatusCode::kPeerLost;
    Lose(closed ? "is gone: the launcher ended"
                : StrCat("is gone: the launcher ended, or was cut off: the "
                         "connection ",
                         status.message()));
    return;
  }
  reader_.Append(bytes);
  while (socket_.valid()) {
    Frame frame;
    StatusOr<bool> whole = reader_.Next(&frame);
    if (!whole.ok()) {
      Lose("is unusable: " + whole.status().message());
    } else if (whole.value()) {
      Handle(frame);
    } else {
      return;
    }
  }
}

void TcpStore::Handle(const Frame& frame) {
  std::lock_guard<std::mutex> lock(mutex_);
  switch (frame.type) {
    case FrameType::kWelcome:
      ping_interval_ = std::chrono::milliseconds(frame.number);
      next_ping_ = Deadline::Clock::now();
      generation_ = frame.request_id;
      welcomed_ = true;
      break;
    case FrameType::kAnswer: {
      const auto found = calls_.find(frame.request_id);
      if (found == calls_.end()) return;  // Its caller has given up.
      found->second->status = rendezvous::ErrorOf(frame);
      found->second->missing = rendezvous::MissingRanksOf(frame);
      found->second->value = frame.payload;
      found->second->done = true;
      calls_.erase(found);
      break;
    }
    case FrameType::kEvent: {
      const RankEvent event = rendezvous::EventOf(frame);
      // Of this rank too: the others are told the same, in the same order.
      if (event.rank == rank_) own_end_ = event.description;
      if (event.rank != rank_ || !left_) events_.push_back(event);
      break;
    }
    default:
      return;  // Only clients send the others.
  }
  changed_.notify_all();
}

void TcpStore::Lose(const std::string& how) {
  socket_.Close();
  sending_.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string text =
      own_end_.empty()
          ? StrCat("the store at ", server_, " ", how)
          : StrCat("the store at ", server_, " gave this rank up: ", own_end_);
  gone_ = Status(StatusCode::kPeerLost, ErrorCode::kStoreGone, text);
  if (!left_ && own_end_.empty()) {
    events_.push_back({RankEvent::Kind::kLost, -1, text});
  }
  FailCalls(gone_);
  changed_.notify_all();
}

void TcpStore::TellWatcher() {
  std::vector<RankEvent> news;
  std::function<void(const RankEvent&)> watcher;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!watcher_ || told_count_ == events_.size()) return;
    news.assign(events_.begin() + static_cast<long>(told_count_),
                events_.end());
    told_count_ = events_.size();
    watcher = watcher_;
  }
  for (const RankEvent& event : news) watcher(event);
}

void TcpStore::Queue(const Frame& frame) {
  queued_ += rendezvous::Encode(frame);
  wake_up_.Notify();
}

void TcpStore::FailCalls(const Status& status) {
  for (auto& [request_id, call] : calls_) {
    call->status = status;
    call->done = true;
  }
  calls_.clear();
  changed_.notify_all();
}

}  // namespace ring_keras
