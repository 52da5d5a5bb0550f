#include "tf_ops/reduce/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ring_keras {

#if defined(__x86_64__)

void StreamingCopy(void* to, const void* from, size_t nbytes) {
  constexpr size_t kLine = 64;
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  // Whole lines alone are written without being read.
  const size_t head =
      std::min(nbytes, -reinterpret_cast<uintptr_t>(target) % kLine);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + kLine <= nbytes; at += kLine) {
    const auto* line = reinterpret_cast<const __m128i*>(source + at);
    auto* into = reinterpret_cast<__m128i*>(target + at);
    _mm_stream_si128(into, _mm_loadu_si128(line));
    _mm_stream_si128(into + 1, _mm_loadu_si128(line + 1));
    _mm_stream_si128(into + 2, _mm_loadu_si128(line + 2));
    _mm_stream_si128(into + 3, _mm_loadu_si128(line + 3));
  }
  std::memcpy(target + at, source + at, nbytes - at);
}

void StreamingCopyFence() { _mm_sfence(); }

#else

// Elsewhere the processor finds out by itself that whole lines are written.
void StreamingCopy(void* to, const void* from, size_t nbytes) {
  std::memcpy(to, from, nbytes);
}

void StreamingCopyFence() {}

#endif

bool OutlastsCaches(size_t nbytes, int ranks) {
  // What a few cores share; virtual machines report anything.
  constexpr size_t kCacheBytes = size_t{8} << 20;
  return nbytes > kCacheBytes / ranks;
}

}  // namespace ring_keras
