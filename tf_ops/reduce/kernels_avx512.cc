// Kernels for x86-64 processors with AVX-512 for floats, bytes and words: Intel
// servers since 2017, AMD since 2022.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/float_mode.h"
#include "tf_ops/reduce/kernel_table.h"

// After every header, so that none of their functions is compiled for AVX-512.
#if defined(__clang__)
#pragma clang attribute push(                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace ring_keras::reduce {
namespace {

constexpr int kVectorBytes = 64;

constexpr __mmask16 kEveryLane = 0xffff;

// The masked forms, because GCC warns of the others' undefined source.
inline __m512 WidenHalf(const unsigned char* half) {
  return _mm512_maskz_cvtph_ps(
      kEveryLane, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half)));
}

inline void NarrowHalf(unsigned char* half, __m512 value) {
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(half),
      _mm512_maskz_cvtps_ph(kEveryLane, value, _MM_FROUND_TO_NEAREST_INT));
}

inline void StreamVector(unsigned char* to, const unsigned char* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

#include "tf_ops/reduce/kernels.inc"

}  // namespace

constinit const KernelTable kAvx512Kernels = MakeTable("avx512");

}  // namespace ring_keras::reduce

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // defined(__x86_64__)
