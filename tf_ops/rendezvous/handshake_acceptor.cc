#include "tf_ops/rendezvous/handshake_acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

// How long to rest when there is no descriptor for a connection.
constexpr double kAcceptBackoffS = 0.5;

// A handshake's messages fit into any socket's buffer, which is empty.
Status SendNow(int fd, std::string_view bytes) {
  if (bytes.empty()) return Status::Ok();
  const ssize_t sent =
      send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return Status::Ok();
  return Status(StatusCode::kPeerLost, "it takes no answer");
}

// Empty if nothing was there.
StatusOr<std::string> ReceiveNow(int fd, size_t limit) {
  std::string bytes(limit, '\0');
  const ssize_t got = recv(fd, bytes.data(), limit, MSG_DONTWAIT);
  if (got > 0) {
    bytes.resize(static_cast<size_t>(got));
    return bytes;
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return std::string();
  }
  return Status(
      StatusCode::kPeerLost,
      StrCat("its connection ",
             got == 0 ? "closed" : StrCat("broke (", ErrnoMessage(errno), ")"),
             " before the handshake was done"));
}

}  // namespace

HandshakeAcceptor::HandshakeAcceptor(const HandshakeAcceptorOptions& options,
                                     FileDescriptor listener, Admit admit)
    : options_(options),
      listener_(std::move(listener)),
      admit_(std::move(admit)),
      warnings_(options.owner) {}

HandshakeAcceptor::~HandshakeAcceptor() = default;

void HandshakeAcceptor::AddPollEntries(std::vector<pollfd>* entries) const {
  // A negative descriptor is skipped.
  entries->push_back(
      {next_accept_.Expired() ? listener_.get() : -1, POLLIN, 0});
  for (const auto& peer : untrusted_) {
    entries->push_back({peer->socket.get(), POLLIN, 0});
  }
}

int HandshakeAcceptor::PollTimeoutMs() const {
  const bool resting = !next_accept_.Expired();
  if (untrusted_.empty() && !resting) return -1;
  double wait_s =
      resting ? next_accept_.RemainingSeconds() : options_.handshake_timeout_s;
  if (!untrusted_.empty()) {
    wait_s = std::min(wait_s, untrusted_.front()->deadline.RemainingSeconds());
  }
  return static_cast<int>(std::min(wait_s, 1000.0) * 1e3 + 0.999);
}

std::vector<TrustedConnection> HandshakeAcceptor::Serve(const pollfd* entries) {
  warnings_.CloseWindow();
  std::vector<TrustedConnection> admitted;
  for (size_t i = 0; i < untrusted_.size(); ++i) {
    UntrustedPeer& peer = *untrusted_[i];
    if (entries[i + 1].revents != 0) {
      if (const Status status = Advance(peer); !status.ok()) {
        if (status.code() == StatusCode::kAborted) {
          peer.socket.Close();
        } else {
          Drop(peer, status.message());
        }
      } else if (peer.handshake.proven()) {
        admitted.push_back(
            {std::move(peer.socket), peer.handshake.client(), peer.address});
      }
    } else if (peer.deadline.Expired()) {
      Drop(peer, StrCat("too slow: the handshake was not done after ",
                        options_.handshake_timeout_s, " s"));
    }
  }
  std::erase_if(untrusted_,
                [](const auto& peer) { return !peer->socket.valid(); });
  if (entries[0].revents != 0) AcceptAll();
  return admitted;
}

Status HandshakeAcceptor::Advance(UntrustedPeer& peer) {
  // Not a byte beyond the handshake: what follows is for others to read.
  StatusOr<std::string> bytes =
      ReceiveNow(peer.socket.get(), peer.handshake.bytes_wanted());
  RING_KERAS_RETURN_IF_ERROR(bytes.status());
  std::string reply;
  const Status status = peer.handshake.Receive(bytes.value(), &reply);
  // A refusal must go out too; why the peer failed matters more than whether it
  // could be told.
  const Status sent = SendNow(peer.socket.get(), reply);
  RING_KERAS_RETURN_IF_ERROR(status);
  RING_KERAS_RETURN_IF_ERROR(sent);
  return peer.handshake.proven() ? Decide(peer) : Status::Ok();
}

Status HandshakeAcceptor::Decide(UntrustedPeer& peer) {
  const HandshakeParty& client = peer.handshake.client();
  const Admission admission = admit_(client, peer.address);
  if (admission.refusal == Refusal::kNone) {
    // A peer that breaks off now is found by those who use the connection.
    static_cast<void>(SendNow(peer.socket.get(), peer.handshake.Accept()));
    return Status::Ok();
  }
  if (admission.refusal == Refusal::kRanksRemain) {
    static_cast<void>(
        SendNow(peer.socket.get(),
                peer.handshake.RefuseWhileRemains(admission.remaining_rank)));
    // It is early, and will ask again.
    return Status(StatusCode::kAborted, "");
  }
  static_cast<void>(
      SendNow(peer.socket.get(), peer.handshake.Refuse(admission.refusal)));
  return Status(
      StatusCode::kUnauthenticated,
      StrCat("it proved to be rank ", client.rank, ", but ", admission.why));
}

void HandshakeAcceptor::AcceptAll() {
  while (true) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      // Out of descriptors: rest a while, or poll() would spin.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
          errno == ENOMEM) {
        warnings_.Warn(StrCat(options_.owner, " cannot accept a connection: ",
                              ErrnoMessage(errno)));
        next_accept_ = Deadline::After(kAcceptBackoffS);
      }
      return;
    }
    DisableNagle(socket.get());
    MakeRoom();
    std::string address = PeerAddress(socket.get());
    untrusted_.push_back(std::make_unique<UntrustedPeer>(
        UntrustedPeer{std::move(socket), std::move(address),
                      ServerHandshake(options_.purpose, options_.rank,
                                      options_.generation, options_.token),
                      Deadline::After(options_.handshake_timeout_s)}));
  }
}

void HandshakeAcceptor::MakeRoom() {
  const size_t count = untrusted_.size();
  if (count < options_.max_untrusted) return;
  Drop(*untrusted_.front(), StrCat("too many unauthenticated connections (",
                                   count, "), this is the oldest"));
  untrusted_.erase(untrusted_.begin());
}

void HandshakeAcceptor::Drop(UntrustedPeer& peer, const std::string& why) {
  warnings_.Warn(StrCat(options_.owner, " dropped the connection from ",
                        peer.address, ": ", why));
  peer.socket.Close();
}

}  // namespace ring_keras::rendezvous
