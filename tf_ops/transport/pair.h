// Messages between this rank and one other, over one or more streams.
//
// A message is named by (key, tag): key is the collective, tag the step in it.
// Receives may be posted before or after the data come; data that come first
// wait in memory of their own, so that no message ever blocks another. Large
// messages are spread over the streams. Not thread-safe: the engine's driver
// is the only caller.
#ifndef RING_KERAS_TRANSPORT_PAIR_H_
#define RING_KERAS_TRANSPORT_PAIR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/transport/frame.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

// Progress of one Send; lives until done() or Cancel.
struct SendOperation {
  int frames_left = 0;
  bool done() const { return frames_left == 0; }
};

// out = combine(a, b) elementwise; see reduce/reduce.h.
using CombineFunction = void (*)(void* out, const void* a, const void* b,
                                 size_t count);

// One Receive; lives until done() or Cancel.
struct ReceiveOperation {
  char* target = nullptr;
  size_t nbytes = 0;
  // Null: the bytes replace `target`. Else they are combined into it, in whole
  // elements of `element_nbytes`.
  CombineFunction combine = nullptr;
  size_t element_nbytes = 1;
  size_t received = 0;
  bool done() const { return received == nbytes; }
};

class Pair {
 public:
  // Called for every frame that is not data.
  using ControlHandler =
      std::function<void(FrameType type, uint64_t key, std::string payload)>;

  // `streams` has 1 or more.
  explicit Pair(std::vector<std::unique_ptr<Stream>> streams);
  ~Pair();

  void set_control_handler(ControlHandler handler) {
    control_handler_ = std::move(handler);
  }

  // Queues a control frame; `payload` holds at most kMaxControlBytes.
  void SendControl(FrameType type, uint64_t key, const std::string& payload);
  // Queues a message; `data` must live until `operation` is done.
  void Send(uint64_t key, uint32_t tag, const void* data, size_t nbytes,
            SendOperation* operation);
  // Posts a receive. Empty messages are not sent and are done at once.
  void Receive(uint64_t key, uint32_t tag, ReceiveOperation* operation);

  // Forgets operations of `key`; their memory is not touched again. What still
  // comes for it is dropped.
  void Cancel(uint64_t key);

  // Whether operations of `key` are under way.
  bool Serves(uint64_t key) const;

  // Moves what can be moved without waiting; whether anything was.
  bool Pump();

  // Looks whether the peer's host still answers; to be called about every
  // second.
  void CheckPeer();

  // All that was queued has reached the peer's host, or nothing more can.
  bool flushed() const;
  // Every stream ended, or one carried nonsense: nothing more will come.
  bool closed() const { return closed_; }
  // Some stream ended. The others may still bring what the peer sent before it
  // went, but no peer that means to stay closes one.
  bool ending() const { return ended_count_ > 0 || closed_; }
  // Why ending(), as far as this end saw; Ok while it is not. DeadlineExceeded:
  // the peer's host does not answer.
  const Status& failure() const { return failure_; }
  // Of both ends, this one first; empty in shared memory.
  std::pair<std::string, std::string> addresses() const;
  void CloseForWriting();

 private:
  struct Outgoing;
  struct Incoming;
  struct Channel;
  struct MessageId {
    uint64_t key;
    uint32_t tag;
    bool operator==(const MessageId& other) const {
      return key == other.key && tag == other.tag;
    }
  };
  struct MessageIdHash {
    size_t operator()(const MessageId& id) const {
      return id.key ^ (uint64_t{id.tag} * 0x9E3779B97F4A7C15u);
    }
  };
  struct Early {
    uint64_t offset;
    std::vector<char> data;
  };

  bool PumpOut(Channel& channel);
  bool PumpIn(Channel& channel);
  ssize_t Read(Channel& channel, char* into, size_t nbytes);
  bool ReadHeader(Channel& channel);
  bool ReadPayload(Channel& channel);
  void FinishFrame(Incoming& incoming);
  void End(Channel& channel);
  void Fail(const Status& why);

  std::vector<std::unique_ptr<Channel>> channels_;
  std::unordered_map<MessageId, ReceiveOperation*, MessageIdHash> posted_;
  std::unordered_map<MessageId, std::vector<Early>, MessageIdHash> early_;
  // One number for each collective that failed here: a peer that does not know
  // yet may send for it at any time.
  std::unordered_set<uint64_t> cancelled_;
  ControlHandler control_handler_;
  size_t ended_count_ = 0;  // Channels that brought their last byte.
  bool closed_ = false;
  Status failure_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_PAIR_H_
