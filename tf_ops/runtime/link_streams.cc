#include "tf_ops/runtime/link_streams.h"

#include <poll.h>

#include <string>
#include <utility>

#include "tf_ops/rendezvous/connection_key.h"
#include "tf_ops/transport/tcp/tcp_stream.h"
#include "tf_ops/transport/tcp/tls_stream.h"

namespace ring_keras {
namespace {

// How often a rank that waits looks whether all others are still there.
constexpr int kLookIntervalMs = 50;

// A stream whose ends have not agreed yet.
struct Agreement {
  int peer = 0;
  TlsStream* stream = nullptr;
};

// Which rank has connected does not matter: the lower one is the server.
StatusOr<std::unique_ptr<TlsStream>> Encrypt(std::unique_ptr<Stream> inner,
                                             const TcpLinkOptions& options,
                                             int peer, uint32_t stream) {
  return TlsStream::Create(
      std::move(inner),
      options.rank < peer ? tls::Role::kServer : tls::Role::kClient,
      ConnectionKey(options.token, Purpose::kRankToRank, options.rank, peer,
                    options.generation, stream));
}

Status Disagreement(const TcpLinkOptions& options, const Agreement& with) {
  const auto [own, other] = with.stream->addresses();
  return Status(StatusCode::kUnauthenticated,
                StrCat("the connection between rank ", options.rank, " at ",
                       own, " and rank ", with.peer, " at ", other,
                       " cannot be encrypted: ", with.stream->end().message()));
}

Status AwaitAgreements(const TcpLinkOptions& options,
                       std::vector<Agreement> open, Poller& poller,
                       Store& store, Deadline deadline) {
  while (true) {
    poller.Collect();
    std::vector<Agreement> left;
    for (const Agreement& one : open) {
      one.stream->Advance();
      if (!one.stream->end().ok()) return Disagreement(options, one);
      if (!one.stream->established() || one.stream->holds_back()) {
        left.push_back(one);
      }
    }
    open = std::move(left);
    if (open.empty()) return Status::Ok();
    if (deadline.Expired()) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("rank ", options.rank, " waited in vain for rank ",
                           open[0].peer, " to agree on TLS"));
    }
    if (deadline.Interrupted()) return Interrupted();
    pollfd entry = {poller.descriptor(), POLLIN, 0};
    poll(&entry, 1, kLookIntervalMs);
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(0)));
  }
}

}  // namespace

StatusOr<LinkStreams> MakeLinkStreams(const TcpLinkOptions& options,
                                      TcpLinks links, Poller& poller,
                                      Store& store, Deadline deadline) {
  LinkStreams streams;
  std::vector<Agreement> open;
  for (auto& [peer, sockets] : links) {
    for (FileDescriptor& socket : sockets) {
      auto tcp = TcpStream::Create(std::move(socket), poller);
      RING_KERAS_RETURN_IF_ERROR(tcp.status());
      auto& own = streams[peer];
      if (!options.encrypts) {
        own.push_back(std::move(tcp.value()));
        continue;
      }
      auto encrypted = Encrypt(std::move(tcp.value()), options, peer,
                               static_cast<uint32_t>(own.size()));
      RING_KERAS_RETURN_IF_ERROR(encrypted.status());
      open.push_back({peer, encrypted.value().get()});
      own.push_back(std::move(encrypted.value()));
    }
  }
  RING_KERAS_RETURN_IF_ERROR(
      AwaitAgreements(options, std::move(open), poller, store, deadline));
  return streams;
}

}  // namespace ring_keras
