// The frames that the store and its clients exchange after the handshake.
//
// One layout for all: length of the rest (4 bytes), type (1), request id (8),
// number (8), length of the name (4), name, payload. What a field means is said
// with each type; unused ones are empty.
#ifndef RING_KERAS_RENDEZVOUS_STORE_PROTOCOL_H_
#define RING_KERAS_RENDEZVOUS_STORE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {

// The numbers travel: append, never renumber.
enum class FrameType : uint8_t {
  // Client to server.
  kHello = 1,  // First. number: pid; name: host name.
  // 2 and 3 had a meaning once.
  // request_id of a kGather that nobody waits for any more. It is answered all
  // the same.
  kCancel = 4,
  kPing = 5,   // The rank is alive.
  kLeave = 6,  // Last. payload: reason. The server closes the connection.
  // request_id; name: topic; payload: value. Answered once every rank has given
  // one, with those of all (gathered_values.h).
  kGather = 7,
  // Server to client.
  // Answers kHello. number: milliseconds between pings; request_id: the
  // generation that the rank has joined.
  kWelcome = 64,
  kAnswer = 65,  // request_id; number: an AnswerCode; payload: value or error.
  kEvent = 66,   // number: rank; name: "lost" or "left"; payload: description.
};

// The numbers travel: append, never renumber.
enum class AnswerCode : int64_t {
  kOk = 0,
  kInvalidArgument = 1,
  kPeerLost = 2,
  kResourceExhausted = 3,
  // Of a kGather that was cancelled. payload: the ranks that have given
  // nothing, 4 bytes each.
  kIncomplete = 4,
};

struct Frame {
  FrameType type = FrameType::kPing;
  uint64_t request_id = 0;
  int64_t number = 0;
  std::string name;
  std::string payload;
};

std::string Encode(const Frame& frame);

// An answer but for its value, of which `nbytes` follow.
std::string EncodeAnswerHeader(uint64_t request_id, size_t nbytes);
std::string EncodeError(uint64_t request_id, const Status& error);
std::string EncodeIncomplete(uint64_t request_id,
                             const std::vector<int>& missing);
// Which ranks are missing; none: it is no such answer.
std::vector<int> MissingRanksOf(const Frame& answer);
// The error that an answer carries; Ok if it carries a value.
Status ErrorOf(const Frame& answer);

std::string EncodeEvent(const RankEvent& event);
RankEvent EventOf(const Frame& frame);

// InvalidArgument for what no store accepts.
Status CheckTopic(const std::string& topic);
Status CheckValue(const std::string& topic, const std::string& value);

// At most kMaxTextBytes of `text`.
std::string Cut(const std::string& text);

// Cuts a stream of bytes into frames. Holds no more than came, and refuses a
// frame by its length before its bytes arrive.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  void Append(std::string_view bytes) { buffer_ += bytes; }

  // Whether a whole frame was there and is now in `frame`. InvalidArgument: the
  // peer breaks the protocol.
  StatusOr<bool> Next(Frame* frame);

 private:
  const size_t max_frame_bytes_;
  std::string buffer_;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_STORE_PROTOCOL_H_
