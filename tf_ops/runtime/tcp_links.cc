#include "tf_ops/runtime/tcp_links.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tf_ops/common/logging.h"
#include "tf_ops/rendezvous/handshake.h"

namespace ring_keras {
namespace {

constexpr double kHandshakeTimeoutS = 10;
constexpr double kAcceptIntervalS = 0.05;
// Strangers beyond this wait in the listen queue.
constexpr int kMaxHandshakesAtOnce = 64;

// Takes connections until every expected one is there.
class Acceptor {
 public:
  Acceptor(const TcpLinkOptions& options, std::vector<int> expected,
           Socket listener)
      : options_(options),
        expected_(std::move(expected)),
        listener_(std::move(listener)),
        thread_([this] { AcceptAll(); }) {}

  ~Acceptor() {
    stop_ = true;
    thread_.join();
    for (std::thread& handshake : handshakes_) handshake.join();
  }

  // The accepted sockets, once complete.
  StatusOr<TcpLinks> Take(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!Complete()) {
      if (deadline.Expired()) {
        return Status(StatusCode::kDeadlineExceeded,
                      StrCat("rank ", options_.rank,
                             ": not every rank connected in time"));
      }
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return std::move(links_);
  }

 private:
  void AcceptAll() {
    while (!stop_) {
      StatusOr<Socket> accepted =
          Accept(listener_, Deadline::After(kAcceptIntervalS));
      if (!accepted.ok()) continue;
      while (!stop_ && under_way_ >= kMaxHandshakesAtOnce) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      ++under_way_;
      handshakes_.emplace_back(
          [this, socket = std::move(accepted.value())]() mutable {
            Admit(std::move(socket));
            --under_way_;
          });
    }
  }

  void Admit(Socket socket) {
    StatusOr<HandshakeParty> peer =
        HandshakeAsServer(socket.descriptor(), Purpose::kRankToRank,
                          options_.rank, options_.generation, options_.token,
                          Deadline::After(kHandshakeTimeoutS));
    std::lock_guard<std::mutex> lock(mutex_);
    Status refused = peer.status();
    if (refused.ok() && !Expects(peer.value())) {
      refused = Status(StatusCode::kUnauthenticated,
                       StrCat("rank ", peer.value().rank, " channel ",
                              peer.value().channel, " is not expected"));
    }
    if (!refused.ok()) {
      Log(LogLevel::kWarning,
          StrCat("turned a connection away: ", refused.message()));
      return;
    }
    links_[peer.value().rank][peer.value().channel] = std::move(socket);
    changed_.notify_all();
  }

  bool Expects(const HandshakeParty& peer) {
    if (std::find(expected_.begin(), expected_.end(), peer.rank) ==
        expected_.end()) {
      return false;
    }
    std::vector<Socket>& sockets = links_[peer.rank];
    sockets.resize(options_.streams);
    return peer.channel < sockets.size() &&
           sockets[peer.channel].descriptor() < 0;
  }

  bool Complete() const {
    for (int rank : expected_) {
      const auto found = links_.find(rank);
      if (found == links_.end()) return false;
      for (const Socket& socket : found->second) {
        if (socket.descriptor() < 0) return false;
      }
    }
    return true;
  }

  const TcpLinkOptions& options_;
  const std::vector<int> expected_;
  Socket listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TcpLinks links_;
  std::vector<std::thread> handshakes_;
  std::atomic<int> under_way_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string AddressKey(int rank) { return StrCat("tcp/address/", rank); }
std::string ConnectedKey(int rank) { return StrCat("tcp/connected/", rank); }

StatusOr<SocketAddress> AddressOf(int rank, Store& store, Deadline deadline) {
  StatusOr<std::string> text = store.Get(AddressKey(rank), deadline);
  RING_KERAS_RETURN_IF_ERROR(text.status());
  const size_t space = text.value().rfind(' ');
  if (space == std::string::npos) {
    return Status(StatusCode::kInternal,
                  StrCat("rank ", rank, " published no address"));
  }
  return SocketAddress{text.value().substr(0, space),
                       std::atoi(text.value().c_str() + space + 1)};
}

StatusOr<std::vector<Socket>> ConnectTo(int peer, const TcpLinkOptions& options,
                                        Store& store, Deadline deadline) {
  StatusOr<SocketAddress> address = AddressOf(peer, store, deadline);
  RING_KERAS_RETURN_IF_ERROR(address.status());
  std::vector<Socket> sockets;
  for (int channel = 0; channel < options.streams; ++channel) {
    StatusOr<Socket> socket = Connect(address.value(), deadline);
    RING_KERAS_RETURN_IF_ERROR(socket.status());
    const HandshakeParty self{options.rank, options.generation,
                              static_cast<uint32_t>(channel)};
    RING_KERAS_RETURN_IF_ERROR(
        HandshakeAsClient(socket.value().descriptor(), Purpose::kRankToRank,
                          self, peer, options.token,
                          Deadline::After(std::min(
                              kHandshakeTimeoutS, deadline.RemainingSeconds())))
            .status());
    sockets.push_back(std::move(socket.value()));
  }
  return sockets;
}

}  // namespace

StatusOr<TcpLinks> ConnectTcpLinks(const TcpLinkOptions& options,
                                   const std::vector<int>& peers, Store& store,
                                   Deadline deadline) {
  const auto first_higher =
      std::upper_bound(peers.begin(), peers.end(), options.rank);
  const int backlog = static_cast<int>(peers.size()) * options.streams + 16;
  StatusOr<Socket> listener = Listen(options.bind_address, backlog);
  RING_KERAS_RETURN_IF_ERROR(listener.status());
  StatusOr<SocketAddress> own = LocalAddress(listener.value());
  RING_KERAS_RETURN_IF_ERROR(own.status());
  Acceptor acceptor(options, {first_higher, peers.end()},
                    std::move(listener.value()));
  RING_KERAS_RETURN_IF_ERROR(
      store.Set(AddressKey(options.rank),
                StrCat(own.value().host, " ", own.value().port)));
  TcpLinks links;
  for (auto peer = peers.begin(); peer != first_higher; ++peer) {
    StatusOr<std::vector<Socket>> sockets =
        ConnectTo(*peer, options, store, deadline);
    if (!sockets.ok()) {
      return Status(sockets.status().code(),
                    StrCat("rank ", options.rank, " cannot reach rank ", *peer,
                           ": ", sockets.status().message()));
    }
    links[*peer] = std::move(sockets.value());
  }
  // Waiting in the store, unlike waiting for a connection, ends at once when a
  // rank dies.
  RING_KERAS_RETURN_IF_ERROR(store.Set(ConnectedKey(options.rank), ""));
  for (auto peer = first_higher; peer != peers.end(); ++peer) {
    RING_KERAS_RETURN_IF_ERROR(
        store.Get(ConnectedKey(*peer), deadline).status());
  }
  StatusOr<TcpLinks> accepted = acceptor.Take(deadline);
  RING_KERAS_RETURN_IF_ERROR(accepted.status());
  links.merge(accepted.value());
  return links;
}

}  // namespace ring_keras
