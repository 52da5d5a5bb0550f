// The handshake on a connected stream socket, waiting for the peer.
#ifndef RING_KERAS_RENDEZVOUS_HANDSHAKE_H_
#define RING_KERAS_RENDEZVOUS_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras {

// Proves to the server at `fd` that this process holds `token`, and has it
// prove the same. Returns the server. Its rank is `expected_peer_rank`; -1 is
// the store. (Servers wait for no single peer: handshake_acceptor.h.)
//
// Reads and writes nothing beyond the handshake; `fd` may be blocking or not,
// stays open, and is to be closed by the caller on error.
//
// Errors: Aborted (Refusal::kRanksRemain), Unauthenticated (wrong token,
// generation, rank or purpose, no ring_keras peer), DeadlineExceeded (the peer
// is too slow), Interrupted, PeerLost (it closed the connection),
// InvalidArgument (a token that is not 32 bytes), Internal. The messages say
// which, and hold nothing secret.
StatusOr<HandshakeParty> HandshakeAsClient(int fd, Purpose purpose,
                                           const HandshakeParty& self,
                                           int expected_peer_rank,
                                           const std::string& token,
                                           Deadline deadline);

// InvalidArgument unless `token` has the length of a token.
Status CheckToken(const std::string& token);

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_HANDSHAKE_H_
