#include "tf_ops/transport/read_ahead.h"

#include <algorithm>
#include <cstring>

namespace ring_keras {

ssize_t ReadAhead::Read(Stream& stream, char* into, size_t nbytes) {
  if (begin_ == end_) {
    const iovec parts[] = {{into, nbytes}, {bytes_.get(), kBytes}};
    const ssize_t count = stream.TryScatter(parts, 2);
    if (count <= static_cast<ssize_t>(nbytes)) return count;
    begin_ = 0;
    end_ = static_cast<size_t>(count) - nbytes;
    return static_cast<ssize_t>(nbytes);
  }
  const size_t count = std::min(nbytes, end_ - begin_);
  std::memcpy(into, bytes_.get() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

}  // namespace ring_keras
