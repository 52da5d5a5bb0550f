// Which pattern a lane runs.
#ifndef RING_KERAS_COLLECTIVES_PATTERN_CHOICE_H_
#define RING_KERAS_COLLECTIVES_PATTERN_CHOICE_H_

#include <cstddef>

#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/tuning.h"
#include "tf_ops/common/data_type.h"

namespace ring_keras {

// For `nbytes` of `wire_dtype` on the wire among so many members, between which
// messages are best `message_nbytes` long: a pure function, so that all of them
// pick the same.
LanePattern* PickPattern(const Tuning& tuning, DataType wire_dtype, int members,
                         size_t nbytes,
                         size_t message_nbytes = Transport::kMessageBytes);

// The same for a lane that stops at half, by one of the patterns that can.
LanePattern* PickHalfPattern(const Tuning& tuning, DataType wire_dtype,
                             int members, size_t nbytes);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_PATTERN_CHOICE_H_
