// The key of one encrypted connection.
#ifndef RING_KERAS_RENDEZVOUS_CONNECTION_KEY_H_
#define RING_KERAS_RENDEZVOUS_CONNECTION_KEY_H_

#include <cstdint>
#include <string>

#include "tf_ops/rendezvous/handshake_protocol.h"

namespace ring_keras {

// What the two ends of a connection, and nobody else, can tell from the job's
// token, 32 bytes: it differs for each purpose, pair of ranks (in either order;
// -1 is the store), generation and stream, so no connection passes for another.
std::string ConnectionKey(const std::string& token, Purpose purpose,
                          int one_rank, int other_rank, uint64_t generation,
                          uint32_t stream);

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_CONNECTION_KEY_H_
