// Reads a stream in large pieces, so that short frames cost no call each.
#ifndef RING_KERAS_TRANSPORT_READ_AHEAD_H_
#define RING_KERAS_TRANSPORT_READ_AHEAD_H_

#include <cstddef>
#include <memory>

#include "tf_ops/transport/stream.h"

namespace ring_keras {

class ReadAhead {
 public:
  // As Stream::TryRead, but with what has been read ahead first.
  ssize_t Read(Stream& stream, char* into, size_t nbytes);

 private:
  // More than is asked for: the next frames' headers, and short frames whole.
  static constexpr size_t kBytes = 16 << 10;

  // Bytes [begin_, end_) have been read and not been asked for.
  std::unique_ptr<char[]> bytes_{new char[kBytes]};
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_READ_AHEAD_H_
