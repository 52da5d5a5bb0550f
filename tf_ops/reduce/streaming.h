// Writing to memory that nobody reads soon: it passes the caches by, so that
// they keep what they hold, and that memory is not read before it is written.
#ifndef RING_KERAS_REDUCE_STREAMING_H_
#define RING_KERAS_REDUCE_STREAMING_H_

#include <cstddef>

namespace ring_keras {

// Like memcpy. Other threads see the bytes after StreamingFence.
void StreamingCopy(void* to, const void* from, size_t nbytes);

// Whether a ReduceOutput may stream to `to`: a cache line begins there.
bool CanStream(const void* to);

// How much of the `nbytes` at `to` cannot: what lies before the first line; all
// of it if that line begins within an element.
size_t BytesBeforeStream(const void* to, size_t nbytes, size_t element_nbytes);

// After it, other threads see what was written past the caches.
void StreamingFence();

// Whether an output of `nbytes` on each of `ranks` ranks of a host is so large
// that little of it would still be in the last cache when it is all written.
bool OutlastsCaches(size_t nbytes, int ranks);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_STREAMING_H_
