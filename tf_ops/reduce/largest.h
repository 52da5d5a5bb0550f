// Which numbers of many are the largest.
#ifndef RING_KERAS_REDUCE_LARGEST_H_
#define RING_KERAS_REDUCE_LARGEST_H_

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/export.h"

namespace ring_keras {

// Writes the places of the `kept` <= `count` values of the largest magnitude,
// in ascending order. Of equal ones the first are kept; what is not finite is
// larger than all else, and equal. `count` must fit into an int32.
//
// Numbers that the caller's mode takes for zeros are zeros here.
//
// `scratch`  for `count` elements.
RING_KERAS_EXPORT void FindLargest(const float* values, size_t count,
                                   size_t kept, int32_t* scratch,
                                   int32_t* places);

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_LARGEST_H_
