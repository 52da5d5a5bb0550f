// This rank's part in a communicator: what it remembers from one collective to
// the next.
#ifndef RING_KERAS_RUNTIME_MEMBER_H_
#define RING_KERAS_RUNTIME_MEMBER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "tf_ops/collectives/communicator.h"
#include "tf_ops/matching/name_table.h"
#include "tf_ops/matching/step_ledger.h"
#include "tf_ops/monitoring/recorder.h"

namespace ring_keras {

class Matcher;

struct Member {
  Member(std::shared_ptr<Communicator> of, Matcher& announcements,
         Recorder& events)
      : communicator(std::move(of)),
        matcher(announcements),
        recorder(events),
        steps(communicator->size(), communicator->rank()) {}

  const std::shared_ptr<Communicator> communicator;
  Matcher& matcher;    // The driver's.
  Recorder& recorder;  // The same.

  // The step that this rank begins next. The caller holds the engine's mutex.
  uint64_t NextStep() const {
    // Callers may have begun a given-up step in which nobody waited.
    if (step > given_up || (step == given_up && reported)) return step + 1;
    return reported ? given_up + 1 : given_up;
  }

  // The driver's.
  uint64_t numbers = 0;  // Given to collectives so far; see DataKeyOf.
  StepLedger steps;
  uint64_t oldest_step = 0;  // What came early for those before it is dropped.
  // An operation has begun to wait for announcements in a step, which may have
  // been lost before.
  bool has_new_wait = false;
  // All ranks are being told, or have been, that the communicator is broken.
  bool peers_know_broken = false;

  // Guarded by the engine's mutex.
  NameTable names;
  uint64_t step = 0;  // The one that this rank began last.
  // Through which step it has given up, and whether its callers have heard of
  // that: each gets the error once, those between two steps in the next.
  uint64_t given_up = 0;
  bool reported = true;
  // Whether one of them was told in the step that was begun last, or on the way
  // to the next.
  bool heard = false;
  // Joins that have ended, which only the driver changes, and whether one is
  // under way.
  uint32_t joins = 0;
  bool in_join = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_MEMBER_H_
