#include "tf_ops/runtime/tcp_links.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/common/tensor_view.h"
#include "tf_ops/rendezvous/handshake.h"
#include "tf_ops/runtime/acceptor_thread.h"
#include "tf_ops/runtime/link_addresses.h"

namespace ring_keras {
namespace {

using rendezvous::Admission;
using rendezvous::TrustedConnection;

// Between attempts to connect.
constexpr double kConnectBackoffS = 0.1;

constexpr char kAddressTopic[] = "tcp/address";
constexpr char kConnectedTopic[] = "tcp/connected";

// Takes the connections of the expected ranks.
class LinkListener {
 public:
  LinkListener(const TcpLinkOptions& options, const std::vector<int>& expected)
      : options_(options) {
    for (int rank : expected) links_[rank].resize(options_.streams);
  }

  // From now on, to the end.
  Status Start(std::vector<FileDescriptor> listeners) {
    auto started = AcceptorThread::Start(
        LinkAcceptorOptions(options_, links_.size() * options_.streams),
        std::move(listeners),
        [this](const HandshakeParty& peer, const std::string&) {
          return Admit(peer);
        },
        [this](TrustedConnection connection) { Keep(std::move(connection)); });
    RING_KERAS_RETURN_IF_ERROR(started.status());
    thread_ = std::move(started.value());
    return Status::Ok();
  }

  // The accepted sockets, once complete.
  StatusOr<TcpLinks> Take(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!Missing().empty()) {
      if (deadline.Expired()) {
        return Status(StatusCode::kDeadlineExceeded,
                      ErrorCode::kRankUnreachable,
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
  void Keep(TrustedConnection connection) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = links_.find(connection.peer.rank);
    if (found == links_.end()) return;  // Taken meanwhile.
    found->second[connection.peer.stream] = std::move(connection.socket);
    changed_.notify_all();
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
  std::mutex mutex_;
  std::condition_variable changed_;
  TcpLinks links_;  // Under mutex_.
  std::unique_ptr<AcceptorThread> thread_;
};

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
  const HandshakeParty self{options.rank, options.generation, stream,
                            options.encrypts};
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
      return Status(StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
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
  const auto addresses = ParseAddresses(peer, address_text);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  std::vector<FileDescriptor> sockets;
  for (int stream = 0; stream < options.streams; ++stream) {
    const auto& address = addresses.value()[stream % addresses.value().size()];
    StatusOr<FileDescriptor> socket = ConnectStream(
        address, peer, static_cast<uint32_t>(stream), options, store, deadline);
    RING_KERAS_RETURN_IF_ERROR(socket.status());
    sockets.push_back(std::move(socket.value()));
  }
  return sockets;
}

// Listens, and accepts `expected` from now on. `addresses`: where, for others.
StatusOr<std::unique_ptr<LinkListener>> StartListening(
    const TcpLinkOptions& options, const std::vector<int>& expected,
    std::string* addresses) {
  auto listeners = ListenForLinks(options, addresses);
  RING_KERAS_RETURN_IF_ERROR(listeners.status());
  auto listener = std::make_unique<LinkListener>(options, expected);
  RING_KERAS_RETURN_IF_ERROR(listener->Start(std::move(listeners.value())));
  return listener;
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
  std::string own_addresses;
  std::unique_ptr<LinkListener> listener;
  if (!peers.empty()) {
    // A connection is there once, untrusted or trusted; but untrusted peers may
    // keep as many untrusted ones busy, where there is room for them.
    const size_t links = peers.size() * static_cast<size_t>(options.streams);
    RING_KERAS_RETURN_IF_ERROR(AllowDescriptors(
        links + kSpareUnauthenticatedConnections,
        2 * links + kSpareUnauthenticatedConnections,
        StrCat("rank ", options.rank, ", with ", options.streams,
               " connections to each of ", peers.size(), " ranks,")));
    auto started =
        StartListening(options, {first_higher, peers.end()}, &own_addresses);
    RING_KERAS_RETURN_IF_ERROR(started.status());
    listener = std::move(started.value());
  }
  const auto addresses = store.Gather(kAddressTopic, own_addresses, deadline);
  RING_KERAS_RETURN_IF_ERROR(addresses.status());
  TcpLinks links;
  for (int peer : InOwnOrder({peers.begin(), first_higher}, options.rank)) {
    StatusOr<std::vector<FileDescriptor>> sockets =
        ConnectTo(peer, addresses.value()[peer], options, store, deadline);
    if (!sockets.ok()) {
      return Status(sockets.status().code(), sockets.status().error_code(),
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
