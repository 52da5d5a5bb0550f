// The kernels of one instruction set. Internal to this room and its tests.
//
// Every table gives the same bits for the same input, whatever the processor
// and the position of an element in the buffer, so that ranks on different
// machines end bitwise equal:
// - a result that is NaN is always the positive quiet NaN without payload;
// - min(+0, -0) is -0 and max(+0, -0) is +0, as in IEEE 754-2019 `minimum` and
//   `maximum`, so that two operands may change sides;
// - the caller's rounding mode and flush-to-zero flags have no effect.
#ifndef RING_KERAS_REDUCE_KERNEL_TABLE_H_
#define RING_KERAS_REDUCE_KERNEL_TABLE_H_

#include <cstddef>
#include <string_view>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras::reduce {

// As ReduceMany(), for 2 or more sources.
using ReduceManyFunction = void (*)(const ReduceOutput* outs, int out_count,
                                    const void* const* sources,
                                    int source_count, size_t count);

// As ReduceManyScaled().
using ReduceScaledFunction = void (*)(const ReduceOutput* outs, int out_count,
                                      const void* const* sources,
                                      int source_count, double factor,
                                      size_t count);

// As Narrow() and Widen().
using ConvertFunction = void (*)(void* out, const void* in, double factor,
                                 size_t count);

// What a processor writes without having read it, if it writes the whole.
constexpr size_t kLineBytes = 64;

// As StreamingCopy(), for whole lines: `to` is where one begins, `from`
// anywhere.
using StreamLinesFunction = void (*)(void* to, const void* from, size_t nbytes);

// Indexed by DataType and ReduceOp; null where Supports() says no,
// `reduce_scaled` also for integers, `narrow` and `widen` for all but 16-bit
// floats.
struct KernelTable {
  const char* name;
  ReduceFunction reduce[kDataTypeCount][kReduceOpCount];
  ReduceManyFunction reduce_many[kDataTypeCount][kReduceOpCount];
  ReduceScaledFunction reduce_scaled[kDataTypeCount][kReduceOpCount];
  ConvertFunction narrow[kDataTypeCount];
  ConvertFunction widen[kDataTypeCount];
  StreamLinesFunction stream_lines;
};

// The generic vectors of the compiler: what it makes of them is as narrow as
// the baseline of the build (SSE2 on x86-64).
extern const KernelTable kScalarKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#elif defined(__aarch64__)
extern const KernelTable kNeonKernels;
#endif

// The table of that name, or null if this processor cannot run it.
const KernelTable* FindKernels(std::string_view name);

// The table for this processor.
const KernelTable& Kernels();

// Scale() of integers.
void ScaleIntegers(DataType dtype, void* out, const void* in, double factor,
                   size_t count);

}  // namespace ring_keras::reduce

#endif  // RING_KERAS_REDUCE_KERNEL_TABLE_H_
