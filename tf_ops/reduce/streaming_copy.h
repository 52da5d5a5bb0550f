// A copy to memory that nobody reads soon: it passes the caches by, so that
// they keep what they hold, and that memory is not read before it is written.
#ifndef RING_KERAS_REDUCE_STREAMING_COPY_H_
#define RING_KERAS_REDUCE_STREAMING_COPY_H_

#include <cstddef>

namespace ring_keras {

// What is best computed, and then copied so, at a time: little, so that reading
// goes on while what was written before is on its way.
constexpr size_t kStreamedBlockBytes = size_t{1} << 10;

// Like memcpy. Other threads see the bytes after StreamingCopyFence.
void StreamingCopy(void* to, const void* from, size_t nbytes);
void StreamingCopyFence();

// Whether an output of `nbytes` on each of `ranks` ranks of a host is so large
// that little of it would still be in the last cache when it is all written.
bool OutlastsCaches(size_t nbytes, int ranks);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_STREAMING_COPY_H_
