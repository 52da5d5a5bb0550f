// An ordered, reliable, non-blocking flow of bytes between two ranks.
#ifndef RING_KERAS_TRANSPORT_STREAM_H_
#define RING_KERAS_TRANSPORT_STREAM_H_

#include <sys/types.h>

#include <cstddef>

namespace ring_keras {

class Stream {
 public:
  // What TryWrite and TryRead return once the peer's end is gone.
  static constexpr ssize_t kClosed = -1;

  virtual ~Stream() = default;

  // Moves up to `nbytes` and returns how many; 0 when it would block.
  virtual ssize_t TryWrite(const void* data, size_t nbytes) = 0;
  virtual ssize_t TryRead(void* data, size_t nbytes) = 0;

  // The descriptor to poll for input, or -1 when a doorbell announces it.
  virtual int descriptor() const = 0;

  // Whether all that was written has reached the peer's host. To close earlier
  // may take it back.
  virtual bool delivered() const = 0;

  // No more writes; the peer reads what is under way, then kClosed.
  virtual void CloseForWriting() = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_STREAM_H_
