// What the kernels of device_code.inc are given. Compiled by NVRTC too, hence
// no includes; it is put before device_code.inc.
#ifndef RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_
#define RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_

namespace ring_keras::cuda {

// Threads of a block, and 16-byte accesses of each: a block's share of the
// work, a *tile*, is kThreads * kGroupsPerThread groups. A group is 16 bytes of
// the wider of the two types.
constexpr int kThreads = 256;
constexpr int kGroupsPerThread = 4;
constexpr int kGroupNbytes = 16;

// As many as fit into the 4 KiB of parameters that a launch may have
// everywhere: they travel with the launch, so nothing has to be copied to the
// device before it, and nothing waits.
constexpr int kMaxSegments = 168;

// One launch of a kernel that copies. Elements are bytes for plain copies.
struct CopyArguments {
  const void* from[kMaxSegments];
  void* to[kMaxSegments];
  unsigned int count[kMaxSegments];  // Elements.
  // Tiles of this segment and all before it. Block b works on tile b.
  unsigned int tiles_end[kMaxSegments];
  unsigned int segment_count;
  double scale;
};
static_assert(sizeof(CopyArguments) <= 4096, "more than a launch may have");

// One launch of a kernel that sums pieces.
struct SumArguments {
  const void* pieces;
  void* sum;
  unsigned long long count;
  int piece_count;
  float scale;
};

}  // namespace ring_keras::cuda

// Every kernel: V(constant, name, type of its one argument, body's function).
#define RING_KERAS_KERNELS(V)                                               \
  V(kCopy, ring_keras_copy, CopyArguments, CopyTile<Copied<unsigned char>>) \
  V(kScaleUint8, ring_keras_scale_uint8, CopyArguments,                     \
    CopyTile<ScaledInteger<unsigned char>>)                                 \
  V(kScaleInt8, ring_keras_scale_int8, CopyArguments,                       \
    CopyTile<ScaledInteger<signed char>>)                                   \
  V(kScaleUint16, ring_keras_scale_uint16, CopyArguments,                   \
    CopyTile<ScaledInteger<unsigned short>>)                                \
  V(kScaleInt16, ring_keras_scale_int16, CopyArguments,                     \
    CopyTile<ScaledInteger<short>>)                                         \
  V(kScaleInt32, ring_keras_scale_int32, CopyArguments,                     \
    CopyTile<ScaledInteger<int>>)                                           \
  V(kScaleInt64, ring_keras_scale_int64, CopyArguments,                     \
    CopyTile<ScaledInteger<long long>>)                                     \
  V(kScaleFloat16, ring_keras_scale_float16, CopyArguments,                 \
    CopyTile<ScaledInFloat32<Float16, Float16>>)                            \
  V(kScaleBfloat16, ring_keras_scale_bfloat16, CopyArguments,               \
    CopyTile<ScaledInFloat32<Bfloat16, Bfloat16>>)                          \
  V(kScaleFloat32, ring_keras_scale_float32, CopyArguments,                 \
    CopyTile<ScaledInFloat32<float, float>>)                                \
  V(kScaleFloat64, ring_keras_scale_float64, CopyArguments,                 \
    CopyTile<ScaledInFloat64>)                                              \
  V(kNarrowToFloat16, ring_keras_narrow_to_float16, CopyArguments,          \
    CopyTile<ScaledInFloat32<float, Float16>>)                              \
  V(kNarrowToBfloat16, ring_keras_narrow_to_bfloat16, CopyArguments,        \
    CopyTile<ScaledInFloat32<float, Bfloat16>>)                             \
  V(kWidenFloat16, ring_keras_widen_float16, CopyArguments,                 \
    CopyTile<ScaledInFloat32<Float16, float>>)                              \
  V(kWidenBfloat16, ring_keras_widen_bfloat16, CopyArguments,               \
    CopyTile<ScaledInFloat32<Bfloat16, float>>)                             \
  V(kSumFloat16, ring_keras_sum_float16, SumArguments, SumGroup<Float16>)   \
  V(kSumBfloat16, ring_keras_sum_bfloat16, SumArguments, SumGroup<Bfloat16>)

namespace ring_keras::cuda {

enum class Kernel : int {
#define RING_KERAS_CONSTANT(constant, ...) constant,
  RING_KERAS_KERNELS(RING_KERAS_CONSTANT)
#undef RING_KERAS_CONSTANT
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_DEVICE_ARGUMENTS_H_
