#include "tf_ops/runtime/tcp_links.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/common/tensor_view.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/rendezvous/handshake_acceptor.h"
#include "tf_ops/rendezvous/wake_up.h"

namespace ring_keras {
namespace {

using rendezvous::Admission;
using rendezvous::HandshakeAcceptor;
using rendezvous::HandshakeAcceptorOptions;
using rendezvous::Selector;
using rendezvous::TrustedConnection;
using rendezvous::WakeUp;

// Between attempts to connect.
constexpr double kConnectBackoffS = 0.1;

constexpr char kAddressTopic[] = "tcp/address";
constexpr char kConnectedTopic[] = "tcp/connected";

HandshakeAcceptorOptions AcceptorOptions(const TcpLinkOptions& options,
                                         size_t expected_count) {
  HandshakeAcceptorOptions result;
  result.owner = StrCat("rank ", options.rank);
  result.purpose = Purpose::kRankToRank;
  result.rank = options.rank;
  result.generation = options.generation;
  result.token = options.token;
  result.handshake_timeout_s = options.handshake_timeout_s;
  result.max_untrusted = expected_count + kSpareUnauthenticatedConnections;
  return result;
}

// Takes the connections of the expected ranks, in a thread of its own.
class LinkListener {
 public:
  LinkListener(const TcpLinkOptions& options, const std::vector<int>& expected,
               FileDescriptor listener, WakeUp wake_up, Selector selector)
      : options_(options),
        wake_up_(std::move(wake_up)),
        acceptor_(AcceptorOptions(options, expected.size() * options.streams),
                  std::move(listener), std::move(selector),
                  [this](const HandshakeParty& peer, const std::string&) {
                    return Admit(peer);
                  }) {
    for (int rank : expected) links_[rank].resize(options_.streams);
    thread_ = std::thread([this] { Run(); });
  }

  // Does not wait for untrusted peers.
  ~LinkListener() {
    stop_ = true;
    wake_up_.Notify();
    thread_.join();
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
      lock.unlock();
      if (deadline.Interrupted()) return Interrupted();
      lock.lock();
    }
    return std::exchange(links_, {});
  }

 private:
  void Run() {
    while (!stop_) {
      pollfd entries[] = {{wake_up_.get(), POLLIN, 0},
                          {acceptor_.descriptor(), POLLIN, 0}};
      poll(entries, 2, acceptor_.PollTimeoutMs());
      auto admitted = acceptor_.Serve();
      std::lock_guard<std::mutex> lock(mutex_);
      for (TrustedConnection& connection : admitted) {
        const auto found = links_.find(connection.peer.rank);
        if (found == links_.end()) continue;  // Taken meanwhile.
        found->second[connection.peer.stream] = std::move(connection.socket);
      }
      changed_.notify_all();
    }
  }

  Admission Admit(const HandshakeParty& peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = links_.find(peer.rank);
    if (found == links_.end() || peer.stream >= found->second.size()) {
      return {Refusal::kRankOutOfRange,
              StrCat("stream ", peer.stream, " of it is not expected")};
    }
    return {};  // Once more too: its first attempt failed on its side.
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
  const WakeUp wake_up_;
  HandshakeAcceptor acceptor_;  // The thread's own.
  std::mutex mutex_;
  std::condition_variable changed_;
  TcpLinks links_;  // Under mutex_.
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Where another rank listens.
struct SocketAddress {
  std::string host;
  int port = 0;
};

StatusOr<SocketAddress> ParseAddress(int rank, const std::string& text) {
  const size_t space = text.rfind(' ');
  if (space == std::string::npos) {
    return Status(StatusCode::kInternal,
                  StrCat("rank ", rank, " published no address"));
  }
  return SocketAddress{text.substr(0, space),
                       std::atoi(text.c_str() + space + 1)};
}

StatusOr<FileDescriptor> ConnectAndProve(const SocketAddress& address, int peer,
                                         const HandshakeParty& self,
                                         const std::string& token,
                                         Deadline deadline) {
  StatusOr<FileDescriptor> socket =
      ConnectOnce(address.host, address.port, deadline);
  RING_KERAS_RETURN_IF_ERROR(socket.status());
  RING_KERAS_RETURN_IF_ERROR(HandshakeAsClient(socket.value().get(),
                                               Purpose::kRankToRank, self, peer,
                                               token, deadline)
                                 .status());
  return socket;
}

// Tries again what time may heal: a peer that is flooded with connections drops
// some that are honest, and one that is busy may be slow. Not so what is told
// by the store: a peer that has died.
StatusOr<FileDescriptor> ConnectStream(const SocketAddress& address, int peer,
                                       uint32_t stream,
                                       const TcpLinkOptions& options,
                                       Store& store, Deadline deadline) {
  const HandshakeParty self{options.rank, options.generation, stream};
  while (true) {
    StatusOr<FileDescriptor> socket =
        ConnectAndProve(address, peer, self, options.token,
                        deadline.Within(options.connect_attempt_s));
    const StatusCode code = socket.status().code();
    if (socket.ok() || code == StatusCode::kUnauthenticated ||
        code == StatusCode::kInterrupted) {
      return socket;
    }
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("nothing came of connecting to ",
                           HostPort(address.host, address.port), ": ",
                           socket.status().message()));
    }
    // Ends when a rank does, so that nobody waits for the dead.
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(kConnectBackoffS)));
  }
}

StatusOr<std::vector<FileDescriptor>> ConnectTo(int peer,
                                                const std::string& address_text,
                                                const TcpLinkOptions& options,
                                                Store& store,
                                                Deadline deadline) {
  StatusOr<SocketAddress> address = ParseAddress(peer, address_text);
  RING_KERAS_RETURN_IF_ERROR(address.status());
  std::vector<FileDescriptor> sockets;
  for (int stream = 0; stream < options.streams; ++stream) {
    StatusOr<FileDescriptor> socket =
        ConnectStream(address.value(), peer, static_cast<uint32_t>(stream),
                      options, store, deadline);
    RING_KERAS_RETURN_IF_ERROR(socket.status());
    sockets.push_back(std::move(socket.value()));
  }
  return sockets;
}

// Listens, and accepts `expected` from now on.
StatusOr<std::unique_ptr<LinkListener>> StartListening(
    const TcpLinkOptions& options, const std::vector<int>& expected,
    std::string* address) {
  StatusOr<FileDescriptor> listener = Listen(options.bind_address, 0);
  if (!listener.ok()) {
    return Status(
        listener.status().code(),
        StrCat("rank ", options.rank, ": ", listener.status().message(),
               ". RING_KERAS_BIND_ADDRESS must be an address of "
               "this host that the other hosts reach."));
  }
  *address = StrCat(LocalHost(listener.value().get()), " ",
                    LocalPort(listener.value().get()));
  StatusOr<WakeUp> wake_up = WakeUp::Make();
  RING_KERAS_RETURN_IF_ERROR(wake_up.status());
  StatusOr<Selector> selector = Selector::Make();
  RING_KERAS_RETURN_IF_ERROR(selector.status());
  return std::make_unique<LinkListener>(
      options, expected, std::move(listener.value()),
      std::move(wake_up.value()), std::move(selector.value()));
}

// The order of a tournament: in each round every rank has another partner, so
// that not all begin with rank 0.
std::vector<int> InOwnOrder(std::vector<int> peers, int rank) {
  std::sort(peers.begin(), peers.end(),
            [&](int a, int b) { return (a ^ rank) < (b ^ rank); });
  return peers;
}

}  // namespace

StatusOr<TcpLinks> ConnectTcpLinks(const TcpLinkOptions& options,
                                   const std::vector<int>& peers, Store& store,
                                   Deadline deadline) {
  const auto first_higher =
      std::upper_bound(peers.begin(), peers.end(), options.rank);
  std::string own_address;
  std::unique_ptr<LinkListener> listener;
  if (!peers.empty()) {
    // A connection is there once, untrusted or trusted; but strangers may keep
    // as many untrusted ones busy, where there is room for them.
    const size_t links = peers.size() * static_cast<size_t>(options.streams);
    RING_KERAS_RETURN_IF_ERROR(AllowDescriptors(
        links + kSpareUnauthenticatedConnections,
        2 * links + kSpareUnauthenticatedConnections,
        StrCat("rank ", options.rank, ", with ", options.streams,
               " connections to each of ", peers.size(), " ranks,")));
    auto started =
        StartListening(options, {first_higher, peers.end()}, &own_address);
    RING_KERAS_RETURN_IF_ERROR(started.status());
    listener = std::move(started.value());
  }
  const auto addresses = store.Gather(kAddressTopic, own_address, deadline);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  TcpLinks links;
  for (int peer : InOwnOrder({peers.begin(), first_higher}, options.rank)) {
    StatusOr<std::vector<FileDescriptor>> sockets =
        ConnectTo(peer, addresses.value()[peer], options, store, deadline);
    if (!sockets.ok()) {
      return Status(sockets.status().code(),
                    StrCat("rank ", options.rank, " cannot reach rank ", peer,
                           ": ", sockets.status().message()));
    }
    links[peer] = std::move(sockets.value());
  }
  // Waiting in the store, unlike waiting for a connection, ends at once when a
  // rank dies.
  RING_KERAS_RETURN_IF_ERROR(
      store.Gather(kConnectedTopic, "", deadline).status());
  if (listener == nullptr) return links;
  StatusOr<TcpLinks> accepted = listener->Take(deadline);
  RING_KERAS_RETURN_IF_ERROR(accepted.status());
  links.merge(accepted.value());
  return links;
}

}  // namespace ring_keras
