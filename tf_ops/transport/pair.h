// Messages between this rank and one other, over one or more streams.
//
// A message is named by (key, tag): key is the collective, tag the step in it.
// Receives may be posted before or after the data come; data that come first
// wait in memory of their own (early_data.h), so that no message ever blocks
// another. Large messages are spread over the streams. Not thread-safe: the
// engine's driver is the only caller.
//
// A pair may begin without streams: what is sent waits until it has some.
//
// What holds between calls:
// - A message is in at most one of `posted_` and `early_`; or in neither, while
//   a frame of it is on its way into memory of its own.
// - A sink refers only to operations in `posted_`: one is taken out when all of
//   it has come, or by Cancel(), which also turns its sinks away from it.
// - Once closed, nothing is read or written, and no operation's memory touched.
#ifndef RING_KERAS_TRANSPORT_PAIR_H_
#define RING_KERAS_TRANSPORT_PAIR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/transport/early_data.h"
#include "tf_ops/transport/frame.h"
#include "tf_ops/transport/message_id.h"
#include "tf_ops/transport/message_operations.h"
#include "tf_ops/transport/payload_sink.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

// What a peer may send before this rank is ready for it. Only collectives that
// this rank has announced bring data, so this is more than any that are under
// way should need; a peer that goes beyond would fill this host's memory.
constexpr size_t kMaxEarlyBytes = size_t{4} << 30;

class Pair {
 public:
  // Called for every frame that is not data.
  using ControlHandler =
      std::function<void(FrameType type, uint64_t key, std::string payload)>;

  // `streams` has 1 or more.
  explicit Pair(std::vector<std::unique_ptr<Stream>> streams,
                size_t max_early_nbytes = kMaxEarlyBytes);
  // Will have `stream_count` streams, 1 or more. `need` is called when they are
  // needed first: something is to be sent or received.
  Pair(int stream_count, std::function<void()> need);
  ~Pair();

  void set_control_handler(ControlHandler handler) {
    control_handler_ = std::move(handler);
  }

  // Whether it has its streams.
  bool connected() const { return connected_; }
  // They are there, as many as it was to have.
  void Connect(std::vector<std::unique_ptr<Stream>> streams);
  // They cannot be made; `addresses`: between which was tried, this one first.
  void FailToConnect(const Status& why,
                     std::pair<std::string, std::string> addresses);

  // Adds to `unsent` each stream that has something to take.
  void CountUnsentIn(std::atomic<int>* unsent);

  // Queues a control frame; `payload` holds at most kMaxControlBytes.
  void SendControl(FrameType type, uint64_t key, const std::string& payload);
  // The same, written by the next WriteQueued(): of many, several at a time.
  void QueueControl(FrameType type, uint64_t key, const std::string& payload);
  // Queues a message; `data` must live until `operation` is done.
  void Send(uint64_t key, uint32_t tag, const void* data, size_t nbytes,
            SendOperation* operation);
  // Posts a receive. Empty messages are not sent and are done at once.
  void Receive(uint64_t key, uint32_t tag, ReceiveOperation* operation);

  // Forgets operations of `key`; their memory is not touched again, unless
  // Holds() says so. What still comes for it is dropped.
  void Cancel(uint64_t key);
  // Whether a stream still moves bytes from or to the memory of operations of
  // `key` that were cancelled. Until it does not, that memory must be neither
  // freed nor written to: the peer would get what is there then. It is so only
  // where streams move payloads by themselves, and for as long as the peer does
  // not take them; whoever asks pumps all pairs meanwhile.
  bool Holds(uint64_t key);

  // Whether operations of `key` are under way.
  bool Serves(uint64_t key) const;

  // Moves what can be moved without waiting; whether anything was.
  bool Pump();
  // Writes what can be written.
  void WriteQueued();

  // How often bytes have gone, in either direction.
  uint64_t moves() const { return moves_; }

  // The peer reads nothing more. What it has sent may still come.
  void StopSending();
  // Nobody uses any more what streams move to the peer. `process_ended`: its
  // process is no more, so that nothing comes from there either.
  void OnPeerGone(bool process_ended);

  // Looks whether the peer's host still answers; to be called about every
  // second.
  void CheckPeer();

  // All that was queued has reached the peer's host, or nothing more can.
  bool flushed() const;
  // Whether payloads are under way that go around the flow.
  bool moves_directly() const;
  // Every stream ended, or one carried nonsense: nothing more will come.
  bool closed() const { return closed_; }
  // Some stream ended. The others may still bring what the peer sent before it
  // went, but no peer that means to stay closes one.
  bool ending() const { return ended_count_ > 0 || closed_; }
  // Why ending(), as far as this end saw; Ok while it is not. DeadlineExceeded:
  // the peer's host does not answer. Unauthenticated: what came is not what it
  // sent. ResourceExhausted: too much came early; or, if it is not connected,
  // there is no descriptor left.
  const Status& failure() const { return failure_; }
  // The failure is the network's, whatever becomes of the peer: nobody else
  // knows better, so nobody need be waited for.
  bool failed_by_network() const {
    return failure_.code() == StatusCode::kDeadlineExceeded ||
           failure_.code() == StatusCode::kUnauthenticated;
  }
  // The collective of which too much came early.
  uint64_t overflow_key() const { return overflow_key_; }
  // Of both ends, this one first; empty in shared memory.
  std::pair<std::string, std::string> addresses() const;
  // Over all streams: their bytes together, the time of the busiest.
  SentTraffic sent() const;
  void CloseForWriting();

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection;

  // How long after a process has ended its last bytes, which this host has got,
  // may take to come into the memory that they are for.
  static constexpr std::chrono::seconds kLastBytes{1};

  // Something is about to be queued, or waited for.
  void Need();
  // Gives what is queued to the stream, if there is one.
  void Write(Connection& connection);
  bool ReadFrom(Connection& connection);
  ssize_t Read(Connection& connection, char* into, size_t nbytes);
  bool ReadHeader(Connection& connection);
  bool ReadPayload(Connection& connection);
  // Decides where the payload goes; false: the frame cannot be right.
  bool BeginPayload(Connection& connection);
  // Of data that came early, or are on their way around a flow.
  size_t EarlyBytes() const;
  void FinishPayload(Connection& connection);
  // All of a frame's payload is where it was to go.
  void FinishFrame(const FrameHeader& header, PayloadSink::Destination taken);
  // Takes note of payloads that came around the flow; whether any did.
  bool EndDirect(Connection& connection);
  // Makes sure that a frame's bytes are ones that the operation waits for;
  // false: they are not, and the pair has failed.
  bool Claim(ReceiveOperation& operation, uint64_t offset, uint64_t nbytes);
  // Data that came into memory of their own, though their receive is posted.
  // False: they are not what it waits for, and the pair has failed.
  bool Deliver(ReceiveOperation& operation, const MessageId& id,
               uint64_t offset, const std::string& bytes);
  // So many more bytes of a message are where they belong.
  void Count(ReceiveOperation& operation, const MessageId& id, size_t nbytes);
  void End(Connection& connection);
  void Fail(const Status& why);

  // One per stream that it has, or needs.
  std::vector<std::unique_ptr<Connection>> connections_;
  const int stream_count_;
  bool connected_ = false;
  const std::function<void()> need_;  // Empty if it began with streams.
  std::pair<std::string, std::string> tried_;  // See FailToConnect().
  std::atomic<int>* unsent_ = nullptr;
  bool stopped_sending_ = false;
  std::optional<Clock::time_point> peer_gone_;  // Since then.
  bool peer_process_ended_ = false;
  std::unordered_map<MessageId, ReceiveOperation*, MessageIdHash> posted_;
  EarlyData early_;
  const size_t max_early_nbytes_;
  // One number for each collective that failed here: a peer that does not know
  // yet may send for it at any time.
  std::unordered_set<uint64_t> cancelled_;
  ControlHandler control_handler_;
  uint64_t moves_ = 0;
  size_t ended_count_ = 0;  // Connections that brought their last byte.
  bool closed_ = false;
  Status failure_;
  uint64_t overflow_key_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_PAIR_H_
