// Kernels for any processor, and the meaning of all others. float16 is
// converted by integer arithmetic.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/float_mode.h"
#include "tf_ops/reduce/kernel_table.h"

namespace ring_keras::reduce {
namespace {

constexpr int kVectorBytes = 16;

typedef float Float4 __attribute__((vector_size(16)));
typedef uint32_t Word4 __attribute__((vector_size(16)));
typedef uint16_t Half4 __attribute__((vector_size(8)));

// The bits of a float32 power of two.
constexpr uint32_t PowerOfTwo(int exponent) {
  return static_cast<uint32_t>(127 + exponent) << 23;
}

inline Float4 WidenHalf(const unsigned char* half) {
  Half4 packed;
  __builtin_memcpy(&packed, half, sizeof(packed));
  const Word4 bits = __builtin_convertvector(packed, Word4);
  const Word4 magnitude = (bits & 0x7fffu) << 13;
  const Word4 normal = magnitude + (uint32_t{127 - 15} << 23);
  // The largest exponent stands for infinity and NaN in both types.
  const Word4 special = magnitude | 0x7f800000u;
  // A denormal m * 2^-24 is the difference of 2^-14 * (1 + m / 2^10) and 2^-14.
  const Float4 smallest_normal = (Float4)(Word4{} + PowerOfTwo(-14));
  const Word4 denormal =
      (Word4)((Float4)(magnitude + PowerOfTwo(-14)) - smallest_normal);
  const Word4 finite = magnitude < (1u << 23) ? denormal : normal;
  const Word4 result = magnitude < (31u << 23) ? finite : special;
  return (Float4)(result | (bits & 0x8000u) << 16);
}

inline void NarrowHalf(unsigned char* half, Float4 value) {
  const Word4 bits = (Word4)value;
  const Word4 magnitude = bits & 0x7fffffffu;
  // To nearest even by a carry out of the 13 bits dropped; it may well reach
  // the exponent of infinity.
  const Word4 odd = (magnitude >> 13) & 1u;
  const Word4 normal =
      (magnitude - (uint32_t{127 - 15} << 23) + 0xfffu + odd) >> 13;
  // Below 2^-14 float16 counts in steps of 2^-24, as float32 does at 0.5: the
  // sum with 0.5 rounds to nearest even by itself.
  const Float4 step_origin = (Float4)(Word4{} + PowerOfTwo(-1));
  const Word4 denormal =
      (Word4)((Float4)magnitude + step_origin) - PowerOfTwo(-1);
  const Word4 infinity = Word4{} + 0x7c00u;
  const Word4 nan = Word4{} + 0x7e00u;
  Word4 result = magnitude < PowerOfTwo(-14) ? denormal : normal;
  result = magnitude < PowerOfTwo(16) ? result : infinity;
  result = magnitude > 0x7f800000u ? nan : result;
  const Half4 packed =
      __builtin_convertvector(result | (bits >> 16 & 0x8000u), Half4);
  __builtin_memcpy(half, &packed, sizeof(packed));
}

inline void StreamVector(unsigned char* to, const unsigned char* from) {
#if defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  __builtin_memcpy(to, from, kVectorBytes);
#endif
}

#include "tf_ops/reduce/kernels.inc"

}  // namespace

constinit const KernelTable kScalarKernels = MakeTable("scalar");

}  // namespace ring_keras::reduce
