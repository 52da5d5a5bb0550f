#include "tf_ops/rendezvous/handshake_acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "tf_ops/common/descriptors.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

// How long to rest when there is no descriptor for a connection.
constexpr double kAcceptBackoffS = 0.5;

// The listener's number; no peer has it.
constexpr uint64_t kListener = 0;

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
                                     FileDescriptor listener, Selector selector,
                                     Admit admit)
    : options_(options),
      listener_(std::move(listener)),
      admit_(std::move(admit)),
      selector_(std::move(selector)),
      warnings_(options.owner) {
  const Status status = selector_.Watch(listener_.get(), kListener, EPOLLIN);
  if (!status.ok()) warnings_.Warn(status.message());
}

HandshakeAcceptor::~HandshakeAcceptor() = default;

int HandshakeAcceptor::PollTimeoutMs() const {
  if (untrusted_.empty() && !resting_) return -1;
  double wait_s =
      resting_ ? next_accept_.RemainingSeconds() : options_.handshake_timeout_s;
  if (!untrusted_.empty()) {
    wait_s = std::min(wait_s,
                      untrusted_.begin()->second.deadline.RemainingSeconds());
  }
  return static_cast<int>(std::min(wait_s, 1000.0) * 1e3 + 0.999);
}

std::vector<TrustedConnection> HandshakeAcceptor::Serve() {
  warnings_.CloseWindow();
  std::vector<TrustedConnection> admitted;
  bool may_accept = false;
  if (const auto ready = selector_.Wait(0); ready.ok()) {
    for (const Selector::Ready& one : ready.value()) {
      may_accept |= one.id == kListener;
      const auto found = untrusted_.find(one.id);
      if (found != untrusted_.end()) ServePeer(found, &admitted);
    }
  }
  DropOverdue();
  if (resting_ && next_accept_.Expired()) {
    resting_ = false;
    selector_.Change(listener_.get(), kListener, EPOLLIN);
    may_accept = true;
  }
  if (may_accept && !resting_) AcceptSome();
  return admitted;
}

void HandshakeAcceptor::ServePeer(Untrusted::iterator found,
                                  std::vector<TrustedConnection>* admitted) {
  UntrustedPeer& peer = found->second;
  if (const Status status = Advance(peer); !status.ok()) {
    if (status.code() == StatusCode::kAborted) {
      Take(found);
    } else {
      Drop(found, status.message());
    }
  } else if (peer.handshake.proven()) {
    const HandshakeParty client = peer.handshake.client();
    std::string address = std::move(peer.address);
    admitted->push_back({Take(found), client, std::move(address)});
  }
}

void HandshakeAcceptor::DropOverdue() {
  while (!untrusted_.empty() && untrusted_.begin()->second.deadline.Expired()) {
    Drop(untrusted_.begin(),
         StrCat("too slow: the handshake was not done after ",
                options_.handshake_timeout_s, " s"));
  }
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

// Who connects without end must not keep the owner from its other work: what
// still waits is there at the next turn.
void HandshakeAcceptor::AcceptSome() {
  for (int accepted = 0; accepted < kMaxAcceptsPerTurn; ++accepted) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr,
                                  SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      // Out of descriptors: what waits is there all the time.
      const int error = errno;
      const bool out_of_descriptors = IsOutOfDescriptors(error);
      if (out_of_descriptors || error == ENOBUFS || error == ENOMEM) {
        std::string text =
            StrCat(options_.owner,
                   " cannot accept a connection: ", ErrnoMessage(error));
        if (out_of_descriptors) text += StrCat(". ", kDescriptorAdvice);
        warnings_.Warn(text);
        Rest();
      }
      return;
    }
    DisableNagle(socket.get());
    MakeRoom();
    const int fd = socket.get();
    const uint64_t id = next_id_++;
    std::string address = PeerAddress(fd);
    untrusted_.emplace(
        id, UntrustedPeer{std::move(socket), std::move(address),
                          ServerHandshake(options_.purpose,
                                          {options_.rank, options_.generation,
                                           0, options_.encrypts},
                                          options_.token),
                          Deadline::After(options_.handshake_timeout_s)});
    if (const Status status = selector_.Watch(fd, id, EPOLLIN); !status.ok()) {
      Drop(untrusted_.find(id), status.message());
    }
  }
}

void HandshakeAcceptor::Rest() {
  resting_ = true;
  next_accept_ = Deadline::After(kAcceptBackoffS);
  selector_.Change(listener_.get(), kListener, 0);
}

void HandshakeAcceptor::MakeRoom() {
  const size_t count = untrusted_.size();
  if (count < options_.max_untrusted) return;
  Drop(untrusted_.begin(), StrCat("too many unauthenticated connections (",
                                  count, "), this is the oldest"));
}

void HandshakeAcceptor::Drop(Untrusted::iterator found,
                             const std::string& why) {
  warnings_.Warn(StrCat(options_.owner, " dropped the connection from ",
                        found->second.address, ": ", why));
  Take(found);
}

FileDescriptor HandshakeAcceptor::Take(Untrusted::iterator found) {
  FileDescriptor socket = std::move(found->second.socket);
  selector_.Forget(socket.get());
  untrusted_.erase(found);
  return socket;
}

}  // namespace ring_keras::rendezvous
