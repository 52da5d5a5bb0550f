#include "tf_ops/runtime/tcp_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "tf_ops/common/logging.h"
#include "tf_ops/common/tensor_view.h"
#include "tf_ops/rendezvous/handshake.h"

namespace ring_keras {
namespace {

constexpr double kAcceptIntervalS = 0.05;
// Strangers beyond this wait in the listen queue.
constexpr size_t kMaxHandshakesAtOnce = 64;

// Takes connections until every expected one is there.
class Acceptor {
 public:
  Acceptor(const TcpLinkOptions& options, const std::vector<int>& expected,
           FileDescriptor listener)
      : options_(options), listener_(std::move(listener)) {
    for (int rank : expected) links_[rank].resize(options_.streams);
    thread_ = std::thread([this] { AcceptAll(); });
  }

  // Does not wait for strangers.
  ~Acceptor() {
    stop_ = true;
    thread_.join();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const Knock& knock : knocks_) {
        if (knock.socket.valid()) shutdown(knock.socket.get(), SHUT_RDWR);
      }
    }
    for (Knock& knock : knocks_) knock.thread.join();
  }

  // The accepted sockets, once complete.
  StatusOr<TcpLinks> Take(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!Missing().empty()) {
      if (deadline.Expired()) {
        return Status(StatusCode::kDeadlineExceeded,
                      StrCat("rank ", options_.rank, " waited in vain for ",
                             options_.streams, " connections from each of ",
                             DebugString(Missing()),
                             ". RING_KERAS_TCP_STREAMS must be the same on "
                             "every rank."));
      }
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return std::exchange(links_, {});
  }

 private:
  // Somebody at the door.
  struct Knock {
    FileDescriptor socket;  // Under mutex_; gone once it is a link.
    std::string address;
    std::thread thread;
    std::atomic<bool> ended{false};
  };

  void AcceptAll() {
    while (!stop_) {
      knocks_.remove_if([](Knock& knock) {
        const bool ended = knock.ended;
        if (ended) knock.thread.join();
        return ended;
      });
      if (knocks_.size() >= kMaxHandshakesAtOnce) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      StatusOr<FileDescriptor> accepted =
          Accept(listener_, Deadline::After(kAcceptIntervalS));
      if (!accepted.ok()) {
        if (accepted.status().code() != StatusCode::kDeadlineExceeded) {
          Log(LogLevel::kWarning, accepted.status().message());
          std::this_thread::sleep_for(
              std::chrono::duration<double>(kAcceptIntervalS));
        }
        continue;
      }
      Knock& knock = knocks_.emplace_back();
      knock.socket = std::move(accepted.value());
      knock.address = PeerAddress(knock.socket.get());
      knock.thread = std::thread([this, &knock] {
        Admit(knock);
        knock.ended = true;
      });
    }
  }

  void Admit(Knock& knock) {
    const StatusOr<HandshakeParty> peer =
        HandshakeAsServer(knock.socket.get(), Purpose::kRankToRank,
                          options_.rank, options_.generation, options_.token,
                          Deadline::After(options_.handshake_timeout_s));
    std::lock_guard<std::mutex> lock(mutex_);
    Status refused = peer.status();
    if (refused.ok() && !Expects(peer.value())) {
      refused = Status(StatusCode::kUnauthenticated,
                       StrCat("rank ", peer.value().rank, " channel ",
                              peer.value().channel, " is not expected"));
    }
    if (!refused.ok()) {
      knock.socket.Close();
      if (stop_) return;
      Log(LogLevel::kWarning, StrCat("turned away the connection from ",
                                     knock.address, ": ", refused.message()));
      return;
    }
    links_[peer.value().rank][peer.value().channel] = std::move(knock.socket);
    changed_.notify_all();
  }

  bool Expects(const HandshakeParty& peer) const {
    const auto found = links_.find(peer.rank);
    return found != links_.end() && peer.channel < found->second.size() &&
           !found->second[peer.channel].valid();
  }

  // Ranks of which a connection is still to come.
  Shape Missing() const {
    Shape missing;
    for (const auto& [rank, sockets] : links_) {
      const bool complete =
          std::all_of(sockets.begin(), sockets.end(),
                      [](const FileDescriptor& fd) { return fd.valid(); });
      if (!complete) missing.push_back(rank);
    }
    return missing;
  }

  const TcpLinkOptions& options_;
  FileDescriptor listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TcpLinks links_;           // Under mutex_.
  std::list<Knock> knocks_;  // The thread's own, while it runs.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string AddressKey(int rank) { return StrCat("tcp/address/", rank); }
std::string ConnectedKey(int rank) { return StrCat("tcp/connected/", rank); }

// Where another rank listens.
struct SocketAddress {
  std::string host;
  int port = 0;
};

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

StatusOr<std::vector<FileDescriptor>> ConnectTo(int peer,
                                                const TcpLinkOptions& options,
                                                Store& store,
                                                Deadline deadline) {
  StatusOr<SocketAddress> address = AddressOf(peer, store, deadline);
  RING_KERAS_RETURN_IF_ERROR(address.status());
  std::vector<FileDescriptor> sockets;
  for (int channel = 0; channel < options.streams; ++channel) {
    StatusOr<FileDescriptor> socket =
        Connect(address.value().host, address.value().port, deadline);
    RING_KERAS_RETURN_IF_ERROR(socket.status());
    const HandshakeParty self{options.rank, options.generation,
                              static_cast<uint32_t>(channel)};
    // All the time there is: the peer may be busy with slow strangers.
    RING_KERAS_RETURN_IF_ERROR(HandshakeAsClient(socket.value().get(),
                                                 Purpose::kRankToRank, self,
                                                 peer, options.token, deadline)
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
  StatusOr<FileDescriptor> listener = Listen(options.bind_address, 0);
  if (!listener.ok()) {
    return Status(
        listener.status().code(),
        StrCat("rank ", options.rank, ": ", listener.status().message(),
               ". RING_KERAS_BIND_ADDRESS must be an address of "
               "this host that the other hosts reach."));
  }
  const std::string own_address = StrCat(LocalHost(listener.value().get()), " ",
                                         LocalPort(listener.value().get()));
  Acceptor acceptor(options, {first_higher, peers.end()},
                    std::move(listener.value()));
  RING_KERAS_RETURN_IF_ERROR(store.Set(AddressKey(options.rank), own_address));
  TcpLinks links;
  for (auto peer = peers.begin(); peer != first_higher; ++peer) {
    StatusOr<std::vector<FileDescriptor>> sockets =
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
