#include "tf_ops/reduce/weighted_sum.h"

#include <cstddef>

#include "tf_ops/reduce/widest.h"

namespace ring_keras {
namespace {

struct Sum {
  static RING_KERAS_INLINE void Run(const float* values, float factor,
                                    const float* others, size_t count,
                                    float* sums) {
    for (size_t i = 0; i < count; ++i) sums[i] = values[i] * factor + others[i];
  }
};

}  // namespace

void WeightedSum(const float* values, float factor, const float* others,
                 size_t count, float* sums) {
  RunWidest<Sum>(values, factor, others, count, sums);
}

}  // namespace ring_keras
