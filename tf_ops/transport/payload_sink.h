// Takes the payload of a frame, in pieces of any length, to where it belongs.
#ifndef RING_KERAS_TRANSPORT_PAYLOAD_SINK_H_
#define RING_KERAS_TRANSPORT_PAYLOAD_SINK_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "tf_ops/transport/frame.h"
#include "tf_ops/transport/message_operations.h"

namespace ring_keras {

class PayloadSink {
 public:
  // Nowhere: its collective is over here.
  struct Discard {};
  // Whole, into memory of its own, for whoever handles the frame then.
  struct Collect {
    std::string bytes;
  };
  // Into the memory of the operation: replaced, or combined.
  struct Fill {
    ReceiveOperation* operation;
  };
  struct Combine {
    ReceiveOperation* operation;
  };
  using Destination = std::variant<Discard, Collect, Fill, Combine>;

  // For the payload of `header`, which fits into the operation, if there is
  // one.
  void Begin(const FrameHeader& header, Destination destination);
  // What is still to come goes nowhere. The memory of the operation is not
  // touched again.
  void DiscardTheRest() { destination_ = Discard(); }

  bool complete() const { return taken_ == nbytes_; }
  // Memory for what comes next, and how much it takes; unless complete().
  std::pair<char*, size_t> Next();
  // So much has been written there.
  void Took(size_t count);

  // The destination, once complete(); it is Discard from then on.
  Destination Finish() { return std::exchange(destination_, Discard()); }

 private:
  char* scratch();

  Destination destination_;
  size_t offset_ = 0;  // In the message.
  size_t nbytes_ = 0;
  size_t taken_ = 0;
  // What is to be combined or discarded goes through here. Bytes
  // [0, taken_ % kScratchBytes) of it are not combined yet.
  std::unique_ptr<char[]> scratch_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_PAYLOAD_SINK_H_
