#include "tf_ops/reduce/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tf_ops/reduce/kernel_table.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ring_keras {

size_t StreamedBlock(const void* to, size_t nbytes) {
  const size_t in_line = reinterpret_cast<uintptr_t>(to) % reduce::kLineBytes;
  const bool is_whole = in_line % sizeof(uint64_t) == 0;
  return std::min(nbytes, kStreamedBlockBytes - (is_whole ? in_line : 0));
}

void StreamingCopy(void* to, const void* from, size_t nbytes) {
  using reduce::kLineBytes;
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t head =
      std::min(nbytes, -reinterpret_cast<uintptr_t>(target) % kLineBytes);
  const size_t lines = (nbytes - head) / kLineBytes * kLineBytes;
  std::memcpy(target, source, head);
  reduce::Kernels().stream_lines(target + head, source + head, lines);
  const size_t tail = head + lines;
  std::memcpy(target + tail, source + tail, nbytes - tail);
}

void StreamingCopyFence() {
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
