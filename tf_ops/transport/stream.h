// An ordered, reliable, non-blocking flow of bytes between two ranks.
#ifndef RING_KERAS_TRANSPORT_STREAM_H_
#define RING_KERAS_TRANSPORT_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "tf_ops/common/status.h"

namespace ring_keras {

// What went out so far.
struct SentTraffic {
  uint64_t acknowledged_nbytes = 0;  // The peer's host has them.
  double busy_s = 0;  // In which some were under way, and the peer had room.
};

class Stream {
 public:
  // What TryWrite and TryRead return once the peer's end is gone.
  static constexpr ssize_t kClosed = -1;

  virtual ~Stream() = default;

  // Moves up to `nbytes` and returns how many; 0 when it would block.
  virtual ssize_t TryWrite(const void* data, size_t nbytes) = 0;
  virtual ssize_t TryRead(void* data, size_t nbytes) = 0;

  // The same for several pieces of memory one after the other, of 1 or more.
  // Streams whose calls cost little need not look beyond the first.
  virtual ssize_t TryGather(const iovec* parts, int part_count) {
    (void)part_count;
    return TryWrite(parts[0].iov_base, parts[0].iov_len);
  }
  virtual ssize_t TryScatter(const iovec* parts, int part_count) {
    (void)part_count;
    return TryRead(parts[0].iov_base, parts[0].iov_len);
  }

  // Payloads of so many bytes or more go around the flow, by messages of their
  // own, from the sender's memory to the receiver's. Both ends have the same
  // number. By default there are none.
  virtual size_t direct_nbytes() const {
    return std::numeric_limits<size_t>::max();
  }

  // Begins to move the next of them: both ends begin them in the same order.
  // The memory is the stream's until the call below has said that it is over;
  // where `owner` is not null, it lives as long as the stream needs it.
  using Owner = std::shared_ptr<char[]>;
  virtual void SendDirect(const void* data, size_t nbytes, Owner owner) {
    (void)data, (void)nbytes, (void)owner;
  }
  virtual void ReceiveDirect(void* data, size_t nbytes, Owner owner) {
    (void)data, (void)nbytes, (void)owner;
  }

  // Whether the oldest one is over; then the next call is about the one after
  // it. If it failed, the stream has ended.
  virtual bool EndDirectSend() { return false; }
  virtual bool EndDirectReceive() { return false; }

  // Goes on with what the stream does by itself, such as sending what it has
  // taken and holds back; whether anything moved. To be called when the network
  // may have changed.
  virtual bool Advance() { return false; }

  // Whether it holds back what it has taken.
  virtual bool holds_back() const { return false; }

  // Looks whether the peer's host still answers; once it has not for too long,
  // the stream has ended. To be called about every second.
  virtual void CheckPeer() {}

  // Why the stream ended, Ok while it has not. PeerLost: the peer's end is
  // closed. DeadlineExceeded: its host does not answer. Unauthenticated: what
  // came is not what it sent.
  virtual Status end() const = 0;

  // Of both ends, this one first; empty where there are none.
  virtual std::pair<std::string, std::string> addresses() const { return {}; }

  // Nothing where no network is in between.
  virtual SentTraffic sent() const { return {}; }

  // Whether all that was written has reached the peer's host. To close earlier
  // may take it back.
  virtual bool delivered() const = 0;

  // No more writes; the peer reads what is under way, then kClosed.
  virtual void CloseForWriting() = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_STREAM_H_
