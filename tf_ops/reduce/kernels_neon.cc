// Kernels for 64-bit Arm, all of which have NEON and its float16 conversions.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/float_mode.h"
#include "tf_ops/reduce/kernel_table.h"

namespace ring_keras::reduce {
namespace {

constexpr int kVectorBytes = 16;

inline float32x4_t WidenHalf(const unsigned char* half) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(half)));
}

inline void NarrowHalf(unsigned char* half, float32x4_t value) {
  vst1_u8(half, vreinterpret_u8_f16(vcvt_f16_f32(value)));
}

// The processor finds out by itself that whole lines are written.
inline void StreamVector(unsigned char* to, const unsigned char* from) {
  vst1q_u8(to, vld1q_u8(from));
}

#include "tf_ops/reduce/kernels.inc"

}  // namespace

constinit const KernelTable kNeonKernels = MakeTable("neon");

}  // namespace ring_keras::reduce

#endif  // defined(__aarch64__)
