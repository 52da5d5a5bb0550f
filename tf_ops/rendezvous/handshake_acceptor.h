// Takes connections from anybody, and hands over those whose peer has proven to
// belong to the job.
//
// For a thread that polls: nothing here waits. An untrusted peer costs one
// descriptor and little memory, for a limited time, and there is a limited
// number of them: beyond it the oldest has to go. A rank needs two round trips,
// so what has waited longest is the least likely to be one; and a rank that is
// hit tries again.
#ifndef RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_
#define RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_protocol.h"
#include "tf_ops/rendezvous/warning_limiter.h"

namespace ring_keras::rendezvous {

struct HandshakeAcceptorOptions {
  std::string owner;  // Who drops connections, in warnings: "the store".
  Purpose purpose = Purpose::kStore;
  int rank = -1;
  uint64_t generation = 0;
  std::string token;  // 32 bytes.
  double handshake_timeout_s = 0;
  size_t max_untrusted = 0;  // Connections at a time; 1 or more.
};

// Whether a peer that holds the token may come in.
struct Admission {
  Refusal refusal = Refusal::kNone;
  std::string why;          // It may not, for the log.
  int remaining_rank = -1;  // Of kRanksRemain.
};

// A connection whose handshake is over, and how to reach its peer.
struct TrustedConnection {
  FileDescriptor socket;
  HandshakeParty peer;
  std::string address;
};

// Not thread-safe.
class HandshakeAcceptor {
 public:
  using Admit = std::function<Admission(const HandshakeParty& peer,
                                        const std::string& address)>;

  HandshakeAcceptor(const HandshakeAcceptorOptions& options,
                    FileDescriptor listener, Admit admit);
  ~HandshakeAcceptor();

  // What poll() is to watch for.
  void AddPollEntries(std::vector<pollfd>* entries) const;
  // The time until something must be done though poll() reports nothing; -1:
  // no limit.
  int PollTimeoutMs() const;

  // Takes the entries that were added, after poll(). Returns connections that
  // have been admitted, and told so.
  std::vector<TrustedConnection> Serve(const pollfd* entries);

 private:
  // Who has proven nothing yet.
  struct UntrustedPeer {
    FileDescriptor socket;
    std::string address;
    ServerHandshake handshake;
    Deadline deadline;
  };

  // Ok: the peer may have more to say, or is proven.
  Status Advance(UntrustedPeer& peer);
  // The verdict of a peer that is proven.
  Status Decide(UntrustedPeer& peer);
  void AcceptAll();
  void MakeRoom();
  void Drop(UntrustedPeer& peer, const std::string& why);

  const HandshakeAcceptorOptions options_;
  const FileDescriptor listener_;
  const Admit admit_;
  std::vector<std::unique_ptr<UntrustedPeer>> untrusted_;  // Oldest first.
  WarningLimiter warnings_;
  // Not before: descriptors had run out.
  Deadline next_accept_ = Deadline::After(0);
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_
