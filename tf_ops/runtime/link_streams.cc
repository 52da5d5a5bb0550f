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

}  // namespace

StatusOr<std::vector<std::unique_ptr<Stream>>> MakeStreams(
    const TcpLinkOptions& options, int peer,
    std::vector<FileDescriptor> sockets, Poller& poller) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (FileDescriptor& socket : sockets) {
    auto tcp = TcpStream::Create(std::move(socket), poller,
                                 options.unreachable_after_s);
    RING_KERAS_RETURN_IF_ERROR(tcp.status());
    if (!options.encrypts) {
      streams.push_back(std::move(tcp.value()));
      continue;
    }
    auto encrypted = Encrypt(std::move(tcp.value()), options, peer,
                             static_cast<uint32_t>(streams.size()));
    RING_KERAS_RETURN_IF_ERROR(encrypted.status());
    streams.push_back(std::move(encrypted.value()));
  }
  return streams;
}

Status AwaitAgreements(const TcpLinkOptions& options,
                       const std::vector<NewLink>& links, Poller& poller,
                       Store& store, Deadline deadline) {
  std::vector<Agreement> open;
  for (const NewLink& link : links) {
    RING_KERAS_RETURN_IF_ERROR(link.failure);
    if (!options.encrypts) continue;
    for (const auto& stream : link.streams) {
      open.push_back({link.peer, static_cast<TlsStream*>(stream.get())});
    }
  }
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
      return Status(StatusCode::kDeadlineExceeded, ErrorCode::kRankUnreachable,
                    StrCat("rank ", options.rank, " waited in vain for rank ",
                           open[0].peer, " to agree on TLS"));
    }
    if (deadline.Interrupted()) return Interrupted();
    pollfd entry = {poller.descriptor(), POLLIN, 0};
    poll(&entry, 1, kLookIntervalMs);
    RING_KERAS_RETURN_IF_ERROR(store.Pause(deadline.Within(0)));
  }
}

}  // namespace ring_keras
