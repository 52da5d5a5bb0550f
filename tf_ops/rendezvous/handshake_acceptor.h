// Takes connections from anybody, and hands over those whose peer has proven to
// belong to the job.
//
// For a thread that waits for many: nothing here does. An untrusted peer costs
// one descriptor and little memory, for a limited time, and there is a limited
// number of them: beyond it the oldest has to go. A rank needs two round trips,
// so what has waited longest is the least likely to be one; and a rank that is
// hit tries again.
#ifndef RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_
#define RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_protocol.h"
#include "tf_ops/rendezvous/selector.h"
#include "tf_ops/rendezvous/warning_limiter.h"

namespace ring_keras::rendezvous {

struct HandshakeAcceptorOptions {
  std::string owner;  // Who drops connections, in warnings: "the store".
  Purpose purpose = Purpose::kStore;
  int rank = -1;
  uint64_t generation = 0;
  bool encrypts = false;  // See HandshakeParty.
  std::string token;      // 32 bytes.
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

  // `selector` is to watch nothing yet.
  HandshakeAcceptor(const HandshakeAcceptorOptions& options,
                    FileDescriptor listener, Selector selector, Admit admit);
  ~HandshakeAcceptor();

  // Readable while there is something to do.
  int descriptor() const { return selector_.descriptor(); }
  // The time until something must be done though that is not readable; -1: no
  // limit.
  int PollTimeoutMs() const;

  // Does what there is to do. Returns connections that have been admitted, and
  // told so.
  std::vector<TrustedConnection> Serve();

 private:
  // Who has proven nothing yet.
  struct UntrustedPeer {
    FileDescriptor socket;
    std::string address;
    ServerHandshake handshake;
    Deadline deadline;
  };

  using Untrusted = std::map<uint64_t, UntrustedPeer>;

  // Ok: the peer may have more to say, or is proven.
  Status Advance(UntrustedPeer& peer);
  // Whether a peer that is proven is admitted.
  Status Decide(UntrustedPeer& peer);
  void ServePeer(Untrusted::iterator found,
                 std::vector<TrustedConnection>* admitted);
  void DropOverdue();
  void AcceptSome();
  void MakeRoom();
  void Drop(Untrusted::iterator found, const std::string& why);
  // Its socket, which nobody watches any more.
  FileDescriptor Take(Untrusted::iterator found);
  void Rest();

  const HandshakeAcceptorOptions options_;
  const FileDescriptor listener_;
  const Admit admit_;
  Selector selector_;
  Untrusted untrusted_;  // By number, so the oldest first.
  uint64_t next_id_ = 1;
  WarningLimiter warnings_;
  // Descriptors had run out: until then nothing is accepted.
  bool resting_ = false;
  Deadline next_accept_ = Deadline::After(0);
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_HANDSHAKE_ACCEPTOR_H_
