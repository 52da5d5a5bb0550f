// Kernels for x86-64 processors with AVX2 and F16C: Intel since 2013, AMD since
// 2015.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/float_mode.h"
#include "tf_ops/reduce/kernel_table.h"

// After every header, so that none of their functions is compiled for AVX2.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

namespace ring_keras::reduce {
namespace {

constexpr int kVectorBytes = 32;

inline __m256 WidenHalf(const unsigned char* half) {
  return _mm256_cvtph_ps(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
}

inline void NarrowHalf(unsigned char* half, __m256 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(half),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

inline void StreamVector(unsigned char* to, const unsigned char* from) {
  _mm256_stream_si256(
      reinterpret_cast<__m256i*>(to),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

#include "tf_ops/reduce/kernels.inc"

}  // namespace

constinit const KernelTable kAvx2Kernels = MakeTable("avx2");

}  // namespace ring_keras::reduce

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // defined(__x86_64__)
