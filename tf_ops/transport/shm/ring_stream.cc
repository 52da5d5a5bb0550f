#include "tf_ops/transport/shm/ring_stream.h"

#include <algorithm>
#include <cstring>

namespace ring_keras {
namespace {

static_assert((kInboxBytes & (kInboxBytes - 1)) == 0, "offsets wrap by mask");

}  // namespace

ssize_t RingStream::TryWrite(const void* data, size_t nbytes) {
  InboxRing& ring = *outbox_;
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  const uint64_t read = ring.read.load(std::memory_order_acquire);
  const size_t count = std::min<size_t>(nbytes, kInboxBytes - (written - read));
  if (count == 0) return 0;
  const size_t offset = written & (kInboxBytes - 1);
  const size_t first = std::min(count, kInboxBytes - offset);
  const char* source = static_cast<const char*>(data);
  std::memcpy(ring.data + offset, source, first);
  std::memcpy(ring.data, source + first, count - first);
  ring.written.store(written + count, std::memory_order_release);
  peer_->RingIfSleeping();
  return static_cast<ssize_t>(count);
}

ssize_t RingStream::TryRead(void* data, size_t nbytes) {
  InboxRing& ring = *inbox_;
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  const uint64_t written = ring.written.load(std::memory_order_acquire);
  const size_t count = std::min<size_t>(nbytes, written - read);
  if (count == 0) return 0;
  const size_t offset = read & (kInboxBytes - 1);
  const size_t first = std::min(count, kInboxBytes - offset);
  char* target = static_cast<char*>(data);
  std::memcpy(target, ring.data + offset, first);
  std::memcpy(target + first, ring.data, count - first);
  ring.read.store(read + count, std::memory_order_release);
  // A writer that found the ring full may sleep until there is room. It may
  // have filled it after the look above: look again, after the store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ring.written.load(std::memory_order_relaxed) - read == kInboxBytes) {
    peer_->RingIfSleeping();
  }
  return static_cast<ssize_t>(count);
}

}  // namespace ring_keras
