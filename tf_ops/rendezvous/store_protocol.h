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

#include "tf_ops/common/status.h"
#include "tf_ops/common/store.h"

namespace ring_keras::rendezvous {

// The numbers travel: append, never renumber.
enum class FrameType : uint8_t {
  // Client to server.
  kHello = 1,   // First. number: pid; name: host name.
  kSet = 2,     // request_id; name: key; payload: value. Answered.
  kGet = 3,     // request_id; name: key. Answered once the key is set.
  kCancel = 4,  // request_id of a kGet that nobody waits for any more.
  kPing = 5,    // The rank is alive.
  kLeave = 6,   // Last. payload: reason. The server closes the connection.
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
};

struct Frame {
  FrameType type = FrameType::kPing;
  uint64_t request_id = 0;
  int64_t number = 0;
  std::string name;
  std::string payload;
};

std::string Encode(const Frame& frame);

std::string EncodeAnswer(uint64_t request_id, const std::string& value);
std::string EncodeError(uint64_t request_id, const Status& error);
// The error that an answer carries; Ok if it carries a value.
Status ErrorOf(const Frame& answer);

std::string EncodeEvent(const RankEvent& event);
RankEvent EventOf(const Frame& frame);

// InvalidArgument for what no store accepts.
Status CheckKey(const std::string& key);
Status CheckValue(const std::string& key, const std::string& value);

// At most kMaxTextBytes of `text`.
std::string Cut(const std::string& text);

// Cuts a stream of bytes into frames. Holds no more than came, and refuses a
// frame by its length before its bytes arrive.
class FrameReader {
 public:
  void Append(std::string_view bytes) { buffer_ += bytes; }

  // Whether a whole frame was there and is now in `frame`. InvalidArgument: the
  // peer breaks the protocol.
  StatusOr<bool> Next(Frame* frame);

 private:
  std::string buffer_;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_STORE_PROTOCOL_H_
