// This rank's part in a communicator: what it remembers from one collective to
// the next.
#ifndef RING_KERAS_RUNTIME_MEMBER_H_
#define RING_KERAS_RUNTIME_MEMBER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/matching/name_use.h"
#include "tf_ops/matching/step_ledger.h"

namespace ring_keras {

struct Member {
  explicit Member(std::shared_ptr<Communicator> of)
      : communicator(std::move(of)),
        steps(communicator->size(), communicator->rank()) {}

  const std::shared_ptr<Communicator> communicator;

  // Apart: ranks may have used a name in steps unequally often.
  NameUse& NameOf(const std::string& name, bool in_step) {
    return in_step ? names_in_steps[name] : names[name];
  }

  // The caller holds the engine's mutex.
  void BeginStep() {
    if (step >= given_up) {
      ++step;
    } else {
      step = reported ? given_up + 1 : given_up;
    }
  }

  // The driver's.
  StepLedger steps;
  uint64_t oldest_step = 0;  // What came early for those before it is dropped.
  // An operation has begun to wait for announcements in a step, which may have
  // been lost before.
  bool has_new_wait = false;

  // Guarded by the engine's mutex.
  std::unordered_map<std::string, NameUse> names;
  std::unordered_map<std::string, NameUse> names_in_steps;
  uint64_t step = 0;  // The one that this rank began last.
  // Through which step it has given up, and whether its callers have heard of
  // that: each gets the error once, those between two steps in the next.
  uint64_t given_up = 0;
  bool reported = true;
  // Joins that have ended, which only the driver changes, and whether one is
  // under way.
  uint32_t joins = 0;
  bool in_join = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_MEMBER_H_
