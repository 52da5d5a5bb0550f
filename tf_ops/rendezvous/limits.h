// Every bound of the rendezvous: what a peer may send, and how long it may
// take.
//
// A peer that has not proven itself can cost no more than these.
#ifndef RING_KERAS_RENDEZVOUS_LIMITS_H_
#define RING_KERAS_RENDEZVOUS_LIMITS_H_

#include <cstddef>

namespace ring_keras {

// The job's secret.
inline constexpr size_t kTokenBytes = 32;

// Topics of gathers, and host names.
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;

// Reasons and descriptions; longer ones are cut.
inline constexpr size_t kMaxTextBytes = 1024;

// What all ranks give to gathers that are not complete, and one answer.
inline constexpr size_t kMaxGatheredBytes = size_t{64} << 20;
// What each value costs the store beside its bytes.
inline constexpr size_t kStoreEntryBytes = 64;

// A frame after its length field: type, id, number, length of the name.
inline constexpr size_t kFrameHeaderBytes = 1 + 8 + 8 + 4;
inline constexpr size_t kMaxFrameBytes =
    kFrameHeaderBytes + kMaxNameBytes + kMaxValueBytes;
// The store's answers may be larger; its clients trust it.
inline constexpr size_t kMaxAnswerFrameBytes =
    kFrameHeaderBytes + kMaxGatheredBytes;

// Connections that have not proven themselves, beyond one for each rank of the
// job: all ranks may connect at the same moment.
inline constexpr size_t kSpareUnauthenticatedConnections = 64;

// How many connections one turn of a server accepts.
inline constexpr int kMaxAcceptsPerTurn = 64;

// What one call reads of a connection at the most.
inline constexpr size_t kReadBytes = size_t{64} << 10;

// The server reads no more requests of a rank that leaves this much unread.
inline constexpr size_t kMaxQueuedBytes = size_t{8} << 20;

// From accept() to the end of the handshake and the rank's name.
inline constexpr double kHandshakeTimeoutS = 10;

// A rank pings this often at the least; silent for longer than the heartbeat
// timeout it is declared lost.
inline constexpr double kPingIntervalS = 1;

// How long the server waits, after a rank's connection closed, for the launcher
// to say how the process ended.
inline constexpr double kExitGraceS = 0.2;

// The store answers at once: only a stopped launcher takes this long.
inline constexpr double kAnswerTimeoutS = 30;

// How long the last messages of a connection may take.
inline constexpr double kDrainTimeoutS = 2;

// Warnings about untrusted peers: so many lines in such a time.
inline constexpr int kMaxWarningsPerWindow = 10;
inline constexpr double kWarningWindowS = 10;

}  // namespace ring_keras

#endif  // RING_KERAS_RENDEZVOUS_LIMITS_H_
