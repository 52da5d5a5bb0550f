// Picks the kernels of the processor at hand.
#include <cstddef>
#include <cstring>
#include <string_view>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/reduce/kernel_table.h"
#include "tf_ops/reduce/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ring_keras {
namespace reduce {
namespace {

#if defined(__x86_64__)
// Asked of the processor itself: older compilers do not know the name. That
// the operating system saves the registers follows from AVX2.
bool HasF16c() {
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && HasF16c(); }

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

const KernelTable& PickKernels() {
  for (const char* name : {"avx512", "avx2", "neon"}) {
    if (const KernelTable* kernels = FindKernels(name)) return *kernels;
  }
  return kScalarKernels;
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable& kernels = PickKernels();
  return kernels;
}

const KernelTable* FindKernels(std::string_view name) {
#if defined(__x86_64__)
  if (name == "avx512") return HasAvx512() ? &kAvx512Kernels : nullptr;
  if (name == "avx2") return HasAvx2() ? &kAvx2Kernels : nullptr;
#elif defined(__aarch64__)
  if (name == "neon") return &kNeonKernels;
#endif
  return name == "scalar" ? &kScalarKernels : nullptr;
}

}  // namespace reduce

bool Supports(DataType dtype, ReduceOp op) {
  if (dtype == DataType::kBool) {
    return op == ReduceOp::kMin || op == ReduceOp::kMax;
  }
  return op != ReduceOp::kAverage || IsFloatingPoint(dtype);
}

ReduceFunction GetReduceFunction(DataType dtype, ReduceOp op) {
  return reduce::Kernels()
      .reduce[static_cast<int>(dtype)][static_cast<int>(op)];
}

void ReduceMany(DataType dtype, ReduceOp op, const ReduceOutput* outs,
                int out_count, const void* const* sources, int source_count,
                size_t count) {
  if (source_count == 1) {
    for (int i = 0; i < out_count; ++i) {
      if (outs[i].data == sources[0] || count == 0) continue;
      std::memcpy(outs[i].data, sources[0], count * SizeOf(dtype));
    }
    return;
  }
  if (source_count == 2 && out_count == 1 && !outs[0].streams) {
    return GetReduceFunction(dtype, op)(outs[0].data, sources[0], sources[1],
                                        count);
  }
  reduce::Kernels().reduce_many[static_cast<int>(dtype)][static_cast<int>(op)](
      outs, out_count, sources, source_count, count);
}

void ReduceManyScaled(DataType dtype, ReduceOp op, const ReduceOutput* outs,
                      int out_count, const void* const* sources,
                      int source_count, double factor, size_t count) {
  reduce::Kernels()
      .reduce_scaled[static_cast<int>(dtype)][static_cast<int>(op)](
          outs, out_count, sources, source_count, factor, count);
}

void Scale(DataType dtype, void* out, const void* in, double factor,
           size_t count) {
  if (IsFloatingPoint(dtype)) {
    // One source: a sum has nothing to add.
    const ReduceOutput to = {out};
    ReduceManyScaled(dtype, ReduceOp::kSum, &to, 1, &in, 1, factor, count);
  } else {
    reduce::ScaleIntegers(dtype, out, in, factor, count);
  }
}

void Narrow(DataType dtype, void* out, const void* in, double factor,
            size_t count) {
  reduce::Kernels().narrow[static_cast<int>(dtype)](out, in, factor, count);
}

void Widen(DataType dtype, void* out, const void* in, double factor,
           size_t count) {
  reduce::Kernels().widen[static_cast<int>(dtype)](out, in, factor, count);
}

const char* InstructionSet() { return reduce::Kernels().name; }

}  // namespace ring_keras
