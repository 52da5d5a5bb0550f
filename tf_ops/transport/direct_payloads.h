// Payloads on their way around a stream's flow (Stream::ReceiveDirect), in
// order.
#ifndef RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_
#define RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "tf_ops/common/spare_memory.h"
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

  bool empty() const { return under_way_.empty(); }
  // What is under way for `key` goes nowhere.
  void Cancel(uint64_t key);
  // Of those that come before they are waited for.
  size_t early_nbytes() const { return early_nbytes_; }
  // Whether some of it still comes into an operation's memory.
  bool Holds(uint64_t key) const;

 private:
  struct Payload {
    FrameHeader header;
    PayloadSink::Destination destination;
    SpareMemory::Buffer buffer;  // None: in place.
  };

  static constexpr size_t kMaxSpareBytes = size_t{8} << 20;

  std::deque<Payload> under_way_;
  size_t early_nbytes_ = 0;
  SpareMemory spare_{kMaxSpareBytes};
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_DIRECT_PAYLOADS_H_
