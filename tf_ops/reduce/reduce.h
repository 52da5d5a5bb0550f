// Elementwise reductions and scaling in host memory, the widest instructions
// chosen at run time.
//
// Files in this room include no TensorFlow and no Eigen header, so that
// per-function target attributes cannot leak into shared inline code.
#ifndef RING_KERAS_REDUCE_REDUCE_H_
#define RING_KERAS_REDUCE_REDUCE_H_

#include <cstddef>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/export.h"
#include "tf_ops/common/reduce_op.h"

namespace ring_keras {

// Whether `op` means something for `dtype`. Average needs a floating-point
// type; bool takes min (and), max (or), and no others.
bool Supports(DataType dtype, ReduceOp op);

// out[i] = op(a[i], b[i]) for `count` elements; average adds like sum. `out`
// may be `a` or `b`; no other overlap, no alignment required. float16 and
// bfloat16 are combined in float32 and rounded to nearest even. Min and max
// give NaN when either side is NaN, and take -0 as less than +0. Integers wrap.
//
// Every processor gives the same bits, whichever side an operand is on: a NaN
// result is always the positive quiet NaN, and the calling thread's rounding
// mode and flushing of denormals have no effect.
using ReduceFunction = void (*)(void* out, const void* a, const void* b,
                                size_t count);

// The fastest function this processor runs. Requires Supports(dtype, op).
ReduceFunction GetReduceFunction(DataType dtype, ReduceOp op);

// One of the places to which a result goes.
struct ReduceOutput {
  void* data;
  // Past the caches. Requires CanStream(data); see streaming.h.
  bool streams = false;
};

// out[i] = ((source[0][i] op source[1][i]) op source[2][i])... in the order
// of `sources`, for 1 or more sources and each of `outs`; float16 and bfloat16
// are accumulated in float32 and rounded once at the end. One source is copied
// bit for bit. An output may be any one source; no other overlap. One pass over
// memory.
void ReduceMany(DataType dtype, ReduceOp op, const ReduceOutput* outs,
                int out_count, const void* const* sources, int source_count,
                size_t count);

// The same times `factor`, for floating-point types: 16-bit floats are
// multiplied in float32, before they are rounded, so that a sum beyond their
// range may well have an average within it.
void ReduceManyScaled(DataType dtype, ReduceOp op, const ReduceOutput* outs,
                      int out_count, const void* const* sources,
                      int source_count, double factor, size_t count);

// out[i] = in[i] * factor, computed in float32 for 16-bit floats, in the type
// itself for float32 and float64, in float64 and rounded toward zero for
// integers, where what does not fit becomes the nearest limit and NaN 0 (bool
// is not allowed). `out` may be `in`.
void Scale(DataType dtype, void* out, const void* in, double factor,
           size_t count);

// out[i] = in[i] * factor in float32, which Narrow then rounds to nearest even.
// `in` of Narrow and `out` of Widen are float32, the other side is `dtype`:
// float16 or bfloat16. No overlap.
void Narrow(DataType dtype, void* out, const void* in, double factor,
            size_t count);
void Widen(DataType dtype, void* out, const void* in, double factor,
           size_t count);

// "avx512", "avx2", "neon" or "scalar": what GetReduceFunction picks here. For
// build reports and logs.
RING_KERAS_EXPORT const char* InstructionSet();

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_REDUCE_H_
