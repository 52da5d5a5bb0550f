// The frames that one stream has still to send, in order.
#ifndef RING_KERAS_TRANSPORT_OUTGOING_FRAMES_H_
#define RING_KERAS_TRANSPORT_OUTGOING_FRAMES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tf_ops/transport/frame.h"
#include "tf_ops/transport/message_operations.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

class OutgoingFrames {
 public:
  // From here on it is one of `unsent` while the stream has something to take,
  // or holds back what it has taken.
  // Only the driver changes that; any thread may look.
  void CountUnsentIn(std::atomic<int>* unsent) { unsent_ = unsent; }

  // A frame that is not data, with a copy of its payload.
  void PushControl(FrameType type, uint64_t key, const std::string& payload);
  // `header.nbytes` bytes of a message; `data` must live until `operation` is
  // done, or Cancel, and while Holds().
  void PushData(const FrameHeader& header, const char* data,
                SendOperation* operation);

  // Gives the stream what it takes; whether anything moved.
  bool WriteTo(Stream& stream);
  // Takes note of direct payloads that are over; whether any is.
  bool EndDirect(Stream& stream);

  // Forgets the data of `key`, but for the rest of a frame that has begun, on
  // which the peer counts: of that it keeps a copy.
  void Cancel(uint64_t key);
  // Whether data of `key` are under way.
  bool Serves(uint64_t key) const;
  // Whether the stream still needs memory of `key`'s sender.
  bool Holds(uint64_t key) const;

  bool empty() const { return frames_.empty() && direct_.empty(); }
  // Whether payloads are under way that go around the flow.
  bool moves_directly() const { return !direct_.empty(); }
  // The peer takes nothing more; what it sent may still be there to read.
  bool broken() const { return broken_; }
  void Break();

 private:
  struct Frame {
    uint64_t key = 0;
    // The header and, if it is short, the payload.
    std::vector<char> owned;
    // What follows of the payload, in the sender's memory or in `copy`.
    const char* data = nullptr;
    size_t data_nbytes = 0;
    Stream::Owner copy;
    bool direct = false;                 // The payload is no part of the flow.
    size_t sent = 0;                     // Into the flow.
    SendOperation* operation = nullptr;  // Null: nobody waits for it.

    size_t nbytes() const { return owned.size() + (direct ? 0 : data_nbytes); }
    // Adds what is left to be sent, at most two parts; how many.
    int AddParts(iovec* parts) const;
  };

  // A payload that goes around the flow.
  struct Direct {
    uint64_t key = 0;
    SendOperation* operation = nullptr;
    size_t nbytes = 0;
    bool is_copy = false;
  };

  void Push(Frame frame);
  void Drop(size_t sent_nbytes, Stream& stream);
  void Count();

  std::deque<Frame> frames_;
  std::deque<Direct> direct_;  // Under way.
  size_t direct_under_way_nbytes_ = 0;
  bool broken_ = false;
  bool stream_holds_back_ = false;
  std::atomic<int>* unsent_ = nullptr;
  bool counted_ = false;  // In *unsent_.
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_OUTGOING_FRAMES_H_
