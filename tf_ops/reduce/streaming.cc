#include "tf_ops/reduce/streaming.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tf_ops/reduce/kernel_table.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ring_keras {

namespace {

size_t BytesToLine(const void* to) {
  return -reinterpret_cast<uintptr_t>(to) % reduce::kLineBytes;
}

}  // namespace

bool CanStream(const void* to) { return BytesToLine(to) == 0; }

size_t BytesBeforeStream(const void* to, size_t nbytes, size_t element_nbytes) {
  const size_t head = BytesToLine(to);
  return head % element_nbytes == 0 ? std::min(nbytes, head) : nbytes;
}

void StreamingCopy(void* to, const void* from, size_t nbytes) {
  using reduce::kLineBytes;
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t head = std::min(nbytes, BytesToLine(target));
  const size_t lines = (nbytes - head) / kLineBytes * kLineBytes;
  std::memcpy(target, source, head);
  reduce::Kernels().stream_lines(target + head, source + head, lines);
  const size_t tail = head + lines;
  std::memcpy(target + tail, source + tail, nbytes - tail);
}

void StreamingFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

bool OutlastsCaches(size_t nbytes, int ranks) {
  // What a few cores share; virtual machines report anything.
  constexpr size_t kCacheBytes = size_t{8} << 20;
  return nbytes > kCacheBytes / ranks;
}

}  // namespace ring_keras
