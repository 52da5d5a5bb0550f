#include "tf_ops/runtime/membership_slot.h"

#include <unistd.h>

namespace ring_keras {

MembershipSlot* MembershipSlot::of_process = nullptr;

Status MembershipSlot::NotInitialized() const {
  if (!parents_topology.has_value()) {
    return Status(
        StatusCode::kNotInitialized,
        "ring_keras is not initialized. Call ring_keras.init() first.");
  }
  return Status(
      StatusCode::kNotInitialized, ErrorCode::kForkedProcess,
      StrCat("this process (pid ", getpid(), ") was forked from rank ",
             parents_topology->rank,
             ", and is not a rank itself: it cannot take part in collectives. "
             "Call them in the process that called ring_keras.init(), or start "
             "this one with multiprocessing's \"spawn\" method and its own "
             "ring_keras.init()."));
}

}  // namespace ring_keras
