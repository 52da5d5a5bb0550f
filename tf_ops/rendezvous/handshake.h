// The handshake on a connected stream socket, waiting for the peer.
#ifndef RING_KERAS_RENDEZVOUS_HANDSHAKE_H_
#define RING_KERAS_RENDEZVOUS_HANDSHAKE_H_

#include <cstdint>
#include <string>

#include "tf_ops/common/deadline.h"
#include "tf_ops/common/status.h"
#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras {

// Prove to the peer at `fd` that this process holds `token`, and have it prove
// the same. They read and write nothing beyond the handshake; `fd` may be
// blocking or not, stays open, and is to be closed by the caller on error.
//
// Errors: Aborted (Refusal::kRanksRemain), Unauthenticated (wrong token,
// generation, rank or purpose, no ring_keras peer, too slow), PeerLost (the
// peer closed the connection), InvalidArgument (a token that is not 32 bytes),
// Internal. The messages say which, and hold nothing secret.

// Returns the peer. Its rank is `expected_peer_rank`; -1 is the store.
StatusOr<HandshakeParty> HandshakeAsClient(int fd, Purpose purpose,
                                           const HandshakeParty& self,
                                           int expected_peer_rank,
                                           const std::string& token,
                                           Deadline deadline);

// Returns the peer, with the rank and the stream that it proved.
StatusOr<HandshakeParty> HandshakeAsServer(int fd, Purpose purpose,
                                           int self_rank, uint64_t generation,
                                           const std::string& token,
                                           Deadline deadline);

// InvalidArgument unless `token` has the length of a token.
Status CheckToken(const std::string& token);

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_HANDSHAKE_H_
