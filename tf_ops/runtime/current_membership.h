// What only the bindings ask about the membership that this process is in.
#ifndef RING_KERAS_RUNTIME_CURRENT_MEMBERSHIP_H_
#define RING_KERAS_RUNTIME_CURRENT_MEMBERSHIP_H_

#include <cstdint>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

struct MembershipNumbers {
  uint64_t generation = 0;
  int communicator_base = 0;  // See communicator_id.h.
};

// NotInitialized: it is in none.
RING_KERAS_EXPORT StatusOr<MembershipNumbers> CurrentMembership();

// Says that every rank's tensors are on a GPU, this one's on `device`, as CUDA
// numbers those that the process sees. Every rank calls it. The GPUs of process
// sets that are added later are connected at once. NotInitialized.
RING_KERAS_EXPORT Status UseCudaDevice(int device);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_CURRENT_MEMBERSHIP_H_
