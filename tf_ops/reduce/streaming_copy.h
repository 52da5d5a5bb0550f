// A copy to memory that nobody reads soon: it passes the caches by, so that
// they keep what they hold, and that memory is not read before it is written.
#ifndef RING_KERAS_REDUCE_STREAMING_COPY_H_
#define RING_KERAS_REDUCE_STREAMING_COPY_H_

#include <cstddef>

namespace ring_keras {

// What is computed just before it is copied so is best done in short blocks:
// then reading goes on while what was written before is on its way.
constexpr size_t kStreamedBlockBytes = size_t{1} << 10;

// The length of the next block of the `nbytes` that go to `to`. It ends where a
// line does, unless that is in the middle of an element of 8 bytes.
size_t StreamedBlock(const void* to, size_t nbytes);

// Like memcpy. Other threads see the bytes after StreamingCopyFence.
void StreamingCopy(void* to, const void* from, size_t nbytes);
void StreamingCopyFence();

// Whether an output of `nbytes` on each of `ranks` ranks of a host is so large
// that little of it would still be in the last cache when it is all written.
bool OutlastsCaches(size_t nbytes, int ranks);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_STREAMING_COPY_H_
