// Elementwise work on tensors in a device's memory: packing them into a fusion
// buffer, converting and scaling on the way, and back.
//
// The results are those of tf_ops/reduce for the same values, bit for bit.
// Everything here puts work into a stream and returns; the host waits for
// nothing. `device`, the stream's, becomes the calling thread's current one.
#ifndef RING_KERAS_CUDA_PACK_H_
#define RING_KERAS_CUDA_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::cuda {

// Elements to copy from one place to another.
struct Segment {
  const void* from;
  void* to;
  uint64_t count;
};

// Compiles what the functions below launch and loads it on the device, if that
// was not done yet, which takes about a second for the first device of a kind.
// They do it by themselves when needed; this chooses the moment.
//
// Errors: Internal (no driver or compiler, or too old for the device).
RING_KERAS_EXPORT Status PrepareDevice(int device);

// Whether CopyScaled() does this: any type to itself, bool only unscaled;
// float32 to float16 or bfloat16 and back.
bool CanCopyScaled(DataType from, DataType to, double scale);

// For every segment, to[i] = from[i] * scale. A scale of 1 between equal types
// copies bits. Otherwise 16-bit floats are computed in float32, float32 and
// float64 in themselves, integers in float64 rounded toward zero (what does not
// fit becomes the nearest limit, NaN 0); results are rounded to nearest even
// and a NaN is the positive quiet one.
//
// Both sides are aligned to their elements. `to` may be `from` where the types
// are equal; no other overlap, within a segment or between two. One launch for
// hundreds of segments, split evenly by bytes, so a list of one large tensor
// and many small ones is as fast as a plain copy of as many bytes; fastest
// where both sides are aligned to 16 bytes.
//
// Errors: InvalidArgument (CanCopyScaled() says no), those of PrepareDevice(),
// Internal (the launch failed).
RING_KERAS_EXPORT Status CopyScaled(int device, StreamHandle stream,
                                    DataType from, DataType to, double scale,
                                    std::span<const Segment> segments);

// sum[i] = (piece 0's element i + piece 1's + ...) * scale, accumulated in
// float32 in that order and rounded once, for `piece_count` pieces of `count`
// elements of `dtype`, float16 or bfloat16, that lie one after the other at
// `pieces`. `sum` and `pieces` do not overlap.
//
// Errors: InvalidArgument (another type), otherwise as CopyScaled().
RING_KERAS_EXPORT Status SumPieces(int device, StreamHandle stream,
                                   DataType dtype, const void* pieces,
                                   int piece_count, uint64_t count,
                                   double scale, void* sum);

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_PACK_H_
