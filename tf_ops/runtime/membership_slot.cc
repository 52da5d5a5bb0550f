#include "tf_ops/runtime/membership_slot.h"

#include <unistd.h>

namespace ring_keras {

MembershipSlot* MembershipSlot::of_process = nullptr;

Status CalledInWait(const char* what) {
  return Status(
      StatusCode::kInvalidArgument, ErrorCode::kCalledInWait,
      StrCat("a signal handler called ", what,
             " while its own thread waits within ring_keras, and that call "
             "must return first. Let the handler set a flag or raise, and call "
             "it in the main program."));
}

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
