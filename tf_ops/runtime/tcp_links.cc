#include "tf_ops/runtime/tcp_links.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/runtime/link_streams.h"

namespace ring_keras {
namespace {

using rendezvous::Admission;
using rendezvous::TrustedConnection;

constexpr char kTopic[] = "tcp/addresses";

// A host that answers may be so busy that its rank does not.
constexpr double kConnectTimeoutS = 60;
constexpr std::chrono::milliseconds kBackoff(100);
// Between looks at whether the other ranks are still there.
constexpr std::chrono::milliseconds kLookInterval(20);

// All ranks see the same, so all say the same.
Status CheckStreams(const std::vector<std::string>& values) {
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (std::stoi(values[rank]) == std::stoi(values[0])) continue;
    return Status(StatusCode::kRankMismatch, ErrorCode::kSettingDiffers,
                  StrCat("RING_KERAS_TCP_STREAMS must be the same on every "
                         "rank: it is ",
                         std::stoi(values[0]), " on rank 0 and ",
                         std::stoi(values[rank]), " on rank ", rank, "."));
  }
  return Status::Ok();
}

// A connection is there once, untrusted or trusted; but untrusted peers may
// keep as many untrusted ones busy, where there is room for them.
Status AllowLinks(const TcpLinkOptions& options, size_t peer_count) {
  // As many as an alltoall needs.
  const size_t most = peer_count * static_cast<size_t>(options.streams);
  const size_t wanted = 2 * most + kSpareUnauthenticatedConnections;
  if (!options.at_once) {
    return AllowDescriptors(kSpareUnauthenticatedConnections, wanted,
                            StrCat("rank ", options.rank));
  }
  return AllowDescriptors(
      most + kSpareUnauthenticatedConnections, wanted,
      StrCat("rank ", options.rank, ", with ", options.streams,
             " connections to each of ", peer_count, " ranks,"));
}

// The order of a tournament: in each round every rank has another partner, so
// that not all begin with rank 0.
std::vector<int> InOwnOrder(std::vector<int> peers, int rank) {
  std::sort(peers.begin(), peers.end(),
            [&](int a, int b) { return (a ^ rank) < (b ^ rank); });
  return peers;
}

}  // namespace

StatusOr<std::unique_ptr<TcpLinks>> TcpLinks::Start(
    const TcpLinkOptions& options, const std::vector<int>& peers,
    Poller& poller, std::function<void()> on_new, Store& store,
    Deadline deadline) {
  if (!peers.empty()) {
    RING_KERAS_RETURN_IF_ERROR(AllowLinks(options, peers.size()));
  }
  std::unique_ptr<TcpLinks> links(
      new TcpLinks(options, peers, poller, std::move(on_new)));
  // Who needs none takes part in the exchange all the same.
  std::string own = StrCat(options.streams, " ");
  if (!peers.empty()) {
    auto listeners = ListenForLinks(options, &own);
    RING_KERAS_RETURN_IF_ERROR(listeners.status());
    TcpLinks* self = links.get();
    auto acceptor = AcceptorThread::Start(
        LinkAcceptorOptions(options, peers.size() * options.streams),
        std::move(listeners.value()),
        [self](const HandshakeParty& peer, const std::string&) {
          return self->Admit(peer);
        },
        [self](TrustedConnection connection) {
          self->Keep(std::move(connection));
        });
    RING_KERAS_RETURN_IF_ERROR(acceptor.status());
    links->acceptor_ = std::move(acceptor.value());
  }
  auto addresses = store.Gather(kTopic, own, deadline);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  RING_KERAS_RETURN_IF_ERROR(CheckStreams(addresses.value()));
  for (std::string& text : addresses.value()) {
    links->addresses_.push_back(text.substr(text.find(' ') + 1));
  }
  links->thread_ = std::thread([self = links.get()] { self->Run(); });
  return links;
}

TcpLinks::TcpLinks(const TcpLinkOptions& options, const std::vector<int>& peers,
                   Poller& poller, std::function<void()> on_new)
    : options_(options), poller_(poller), on_new_(std::move(on_new)) {
  for (int peer : peers) {
    if (peer > options.rank) accepted_[peer].resize(options.streams);
  }
}

TcpLinks::~TcpLinks() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  acceptor_.reset();
  if (thread_.joinable()) thread_.join();
}

Status TcpLinks::Await(const std::vector<int>& peers, Store& store,
                       Deadline deadline) {
  for (int peer : InOwnOrder(peers, options_.rank)) Open(peer);
  while (true) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::set<int> missing(peers.begin(), peers.end());
    for (const Outcome& outcome : outcomes_) {
      const bool awaited = missing.erase(outcome.peer) > 0;
      if (awaited && !outcome.failure.ok()) return CannotReach(outcome);
    }
    if (missing.empty()) return Status::Ok();
    if (deadline.Expired()) return IsMissing(*missing.begin());
    changed_.wait_for(lock, kLookInterval);
    lock.unlock();
    if (deadline.Interrupted()) return Interrupted();
    // Ends when a rank does, so that nobody waits for the dead.
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(0)));
  }
}

Status TcpLinks::CannotReach(const Outcome& outcome) const {
  const StatusCode code = outcome.failure.code();
  if (code == StatusCode::kInternal) return outcome.failure;
  return Status(
      code == StatusCode::kUnauthenticated ? code : StatusCode::kPeerLost,
      ErrorCode::kRankUnreachable,
      StrCat("rank ", options_.rank, " at ", outcome.addresses.first,
             " cannot reach rank ", outcome.peer, " at ",
             outcome.addresses.second, ": ", outcome.failure.message()));
}

Status TcpLinks::IsMissing(int peer) const {
  const auto last = last_attempts_.find(peer);
  return Status(
      StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
      StrCat("rank ", options_.rank, " has no connection to rank ", peer,
             " yet", last == last_attempts_.end() ? "" : ": " + last->second,
             ". Look at the network between the two hosts, or raise "
             "RING_KERAS_INIT_TIMEOUT_S."));
}

void TcpLinks::Open(int peer) {
  if (peer > options_.rank) return;  // It connects.
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_.count(peer) > 0 || !wanted_.insert(peer).second) return;
  to_connect_.push_back(peer);
  changed_.notify_all();
}

void TcpLinks::Forget(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  ended_.insert(peer);
  changed_.notify_all();
}

std::vector<NewLink> TcpLinks::Take() {
  std::vector<Outcome> outcomes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    has_new_.store(false);
    outcomes.swap(outcomes_);
  }
  std::vector<NewLink> links;
  for (Outcome& outcome : outcomes) {
    NewLink link;
    link.peer = outcome.peer;
    link.failure = outcome.failure;
    link.addresses = std::move(outcome.addresses);
    if (link.failure.ok()) {
      auto streams = MakeStreams(options_, outcome.peer,
                                 std::move(outcome.sockets), poller_);
      link.failure = streams.status();
      if (streams.ok()) link.streams = std::move(streams.value());
    }
    links.push_back(std::move(link));
  }
  return links;
}

Admission TcpLinks::Admit(const HandshakeParty& peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = accepted_.find(peer.rank);
  if (found == accepted_.end() || peer.stream >= found->second.size()) {
    return {Refusal::kRankOutOfRange,
            StrCat("stream ", peer.stream, " of it is not expected")};
  }
  return {};
}

void TcpLinks::Keep(TrustedConnection connection) {
  Outcome outcome;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = accepted_.find(connection.peer.rank);
    if (found == accepted_.end()) return;
    Sockets& sockets = found->second;
    sockets[connection.peer.stream] = std::move(connection.socket);
    if (!std::all_of(sockets.begin(), sockets.end(),
                     [](const FileDescriptor& fd) { return fd.valid(); })) {
      return;
    }
    outcome.peer = connection.peer.rank;
    outcome.sockets = std::move(sockets);
    accepted_.erase(found);
  }
  Finish(std::move(outcome));
}

void TcpLinks::Run() {
  while (true) {
    int peer = -1;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !to_connect_.empty(); });
      if (stop_) return;
      peer = to_connect_.front();
      to_connect_.pop_front();
    }
    Outcome outcome = ConnectTo(peer);
    // What became of its rank the store has told, with the reason.
    if (outcome.failure.code() == StatusCode::kInterrupted) continue;
    Finish(std::move(outcome));
  }
}

void TcpLinks::Finish(Outcome outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    outcomes_.push_back(std::move(outcome));
    has_new_.store(true);
    changed_.notify_all();
  }
  on_new_();
}

TcpLinks::Outcome TcpLinks::ConnectTo(int peer) {
  Outcome outcome;
  outcome.peer = peer;
  auto addresses = ParseAddresses(peer, addresses_[peer]);
  outcome.failure = addresses.status();
  for (int stream = 0; stream < options_.streams && outcome.failure.ok();
       ++stream) {
    const size_t count = addresses.value().size();
    const SocketAddress& address = addresses.value()[stream % count];
    auto socket = Connect(address, peer, static_cast<uint32_t>(stream));
    outcome.failure = socket.status();
    outcome.addresses = {
        options_.bind_addresses[stream % options_.bind_addresses.size()],
        HostPort(address.host, address.port)};
    if (socket.ok()) outcome.sockets.push_back(std::move(socket.value()));
  }
  return outcome;
}

// Tries again what time may heal. An attempt that has reached the peer is not
// given up while both are there: the peer may have taken it.
StatusOr<FileDescriptor> TcpLinks::Connect(const SocketAddress& address,
                                           int peer, uint32_t stream) {
  const Interruption interruption = [this, peer] { return IsGivenUp(peer); };
  constexpr double kForever = std::numeric_limits<double>::infinity();
  const Deadline deadline =
      Deadline::After(options_.at_once ? kForever : kConnectTimeoutS)
          .EndedBy(&interruption);
  // Two attempts at least, as the kernel loses the first packet now and then;
  // the time is over in the last.
  const double attempt_s =
      std::min(options_.unreachable_after_s / 2, options_.connect_attempt_s);
  const Deadline cut_off = Deadline::After(
      options_.at_once ? kForever
                       : options_.unreachable_after_s - attempt_s / 2);
  const HandshakeParty self{options_.rank, options_.generation, stream,
                            options_.encrypts};
  while (true) {
    auto socket =
        ConnectOnce(address.host, address.port, deadline.Within(attempt_s));
    Status status = socket.status();
    const bool reached = status.ok();
    if (reached) {
      ProbeWhenIdle(socket.value().get(), options_.unreachable_after_s);
      status = HandshakeAsClient(socket.value().get(), Purpose::kRankToRank,
                                 self, peer, options_.token, deadline)
                   .status();
    }
    if (status.ok()) return socket;
    if (status.code() == StatusCode::kUnauthenticated ||
        status.code() == StatusCode::kInterrupted) {
      return status;
    }
    if (!reached && cut_off.Expired()) return NotReached(status);
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("it could not be made for ", kConnectTimeoutS,
                           " s: ", status.message()));
    }
    const std::string why =
        StrCat("nothing came of connecting to ",
               HostPort(address.host, address.port), ": ", status.message());
    if (!Rest(peer, why)) return Interrupted();
  }
}

Status TcpLinks::NotReached(const Status& last) const {
  switch (last.code()) {
    case StatusCode::kDeadlineExceeded:
      return Status(last.code(), UnansweredFor(options_.unreachable_after_s));
    case StatusCode::kResourceExhausted:
      return Status(last.code(),
                    StrCat("rank ", options_.rank, " ", last.message()));
    default:
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("it could not be made: ", last.message()));
  }
}

bool TcpLinks::Rest(int peer, std::string why) {
  std::unique_lock<std::mutex> lock(mutex_);
  last_attempts_[peer] = std::move(why);
  changed_.wait_for(lock, kBackoff);
  return !stop_ && ended_.count(peer) == 0;
}

bool TcpLinks::IsGivenUp(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_ || ended_.count(peer) > 0;
}

StatusOr<std::vector<NewLink>> ConnectAll(TcpLinkOptions options,
                                          const std::vector<int>& peers,
                                          Poller& poller, Store& store,
                                          Deadline deadline) {
  options.at_once = true;
  auto links = TcpLinks::Start(options, peers, poller, [] {}, store, deadline);
  RING_KERAS_RETURN_IF_ERROR(links.status());
  RING_KERAS_RETURN_IF_ERROR(links.value()->Await(peers, store, deadline));
  std::vector<NewLink> made = links.value()->Take();
  RING_KERAS_RETURN_IF_ERROR(
      AwaitAgreements(options, made, poller, store, deadline));
  return made;
}

}  // namespace ring_keras
