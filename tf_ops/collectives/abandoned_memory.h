// Memory of a failed collective that a network would still read or write.
#ifndef RING_KERAS_COLLECTIVES_ABANDONED_MEMORY_H_
#define RING_KERAS_COLLECTIVES_ABANDONED_MEMORY_H_

#include "tf_ops/common/status.h"

namespace ring_keras {

// Ends this process, and says why: a collective has failed by `failure`, and
// MPI does not let go of memory that it sends to `rank` or receives from there.
// If the program went on, its next values there would reach that rank in place
// of those it should get, or be overwritten.
[[noreturn]] void AbandonProcess(int rank, const Status& failure);

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_ABANDONED_MEMORY_H_
