// The header before every piece of data between two ranks.
#ifndef RING_KERAS_TRANSPORT_FRAME_H_
#define RING_KERAS_TRANSPORT_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace ring_keras {

// The numbers travel between ranks: append, never renumber.
enum class FrameType : uint16_t {
  kAnnouncement = 1,  // This rank takes part in the collective `key`.
  kData = 2,          // Bytes of the message (key, tag), from `offset` on.
  kAbort = 3,         // The communicator `key` is broken; payload says why.
  kGivenUp = 4,  // Steps of the communicator `key` that this rank gives up.
  kDump =
      5,  // Write down what is under way, for the cause `key`; payload: why.
  kRelayed = 6,   // Another rank's frame (relayed_frame.h), to be passed on to
                  // those of the communicator `key`.
  kPost = 7,      // This rank is in the next use of the channel `key`.
  kWaiting = 8,   // It has been there for long: for those it tells not at once.
  kDebugged = 9,  // Somebody debugs this rank, if `key` is 1, or no longer.
  kAwaited = 10,  // The rank `key` is to say where its program stands: it is
                  // waited for; payload: how.
};

// In the byte order of the host. Ranks of one job share an architecture; where
// they do not, the magic of the first frame is wrong, and the pair is closed.
struct FrameHeader {
  uint32_t magic = kMagic;
  FrameType type = FrameType::kData;
  uint16_t reserved = 0;
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t nbytes = 0;  // Of the payload that follows.
  uint32_t tag = 0;
  uint32_t reserved2 = 0;

  static constexpr uint32_t kMagic = 0x52494e47;
};
static_assert(sizeof(FrameHeader) == 40, "no hidden padding on the wire");

// Bounds that a receiver checks before it allocates.
constexpr size_t kMaxControlBytes = size_t{1} << 20;
// What passing a control frame on adds to it: rank, type, key.
constexpr size_t kRelayBytes = 4 + 2 + 8;
constexpr size_t kMaxDataFrameBytes = size_t{64} << 20;

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_FRAME_H_
