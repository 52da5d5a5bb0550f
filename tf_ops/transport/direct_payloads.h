// Payloads on their way around a stream's flow (Stream::ReceiveDirect), in
// order.
#ifndef RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_
#define RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "tf_ops/transport/frame.h"
#include "tf_ops/transport/payload_sink.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

class DirectPayloads {
 public:
  struct Ended {
    FrameHeader header;
    PayloadSink::Destination destination;
  };

  // Receives the payload of `header`, which fits into the operation, if there
  // is one. What replaces an operation's memory comes there at once.
  void Begin(const FrameHeader& header, PayloadSink::Destination destination,
             Stream& stream);
  // The oldest one, if it is over: its bytes are where they belong.
  std::optional<Ended> End(Stream& stream);

  // What is under way for `key` goes nowhere.
  void Cancel(uint64_t key);
  // Of those that come before they are waited for.
  size_t early_nbytes() const { return early_nbytes_; }
  // Whether some of it still comes into an operation's memory.
  bool Holds(uint64_t key) const;

 private:
  // Memory that is used again: new one costs a fault for each page.
  struct Buffer {
    Stream::Owner memory;
    size_t nbytes = 0;
  };
  struct Payload {
    FrameHeader header;
    PayloadSink::Destination destination;
    Buffer buffer;  // None: in place.
  };

  Buffer Take(size_t nbytes);

  std::deque<Payload> under_way_;
  size_t early_nbytes_ = 0;
  std::vector<Buffer> spare_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_
