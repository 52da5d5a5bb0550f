#ifndef RING_KERAS_REDUCE_WEIGHTED_SUM_H_
#define RING_KERAS_REDUCE_WEIGHTED_SUM_H_

#include <cstddef>

#include "tf_ops/common/export.h"

namespace ring_keras {

// sums[i] = values[i] * factor + others[i], which is rounded twice, as in
// updates.h. `sums` may be one of the two.
RING_KERAS_EXPORT void WeightedSum(const float* values, float factor,
                                   const float* others, size_t count,
                                   float* sums);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_WEIGHTED_SUM_H_
