// Ranks that are in different steps find out, and go on together. What the
// messages mean, and why that is enough: matching/step_ledger.h.
#ifndef RING_KERAS_RUNTIME_STEP_AGREEMENT_H_
#define RING_KERAS_RUNTIME_STEP_AGREEMENT_H_

#include <cstdint>
#include <optional>

#include "tf_ops/matching/announcement.h"
#include "tf_ops/matching/step_ledger.h"
#include "tf_ops/runtime/active_operations.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/shared_state.h"

namespace ring_keras {

// What it agrees on is each member's. The driver's; the caller does not hold
// the engine's mutex. Operations are in a step.
class StepAgreement {
 public:
  // All outlive this. `job_rank` is this rank.
  StepAgreement(int job_rank, const ActiveOperations& operations,
                Matcher& matcher, SharedState& shared)
      : job_rank_(job_rank),
        operations_(operations),
        matcher_(matcher),
        shared_(shared) {}

  // Whether a peer's announcement comes too late for an operation of this
  // rank's to wait for it. See StepLedger.
  bool IsPast(const Member& member, const UseId& use) const;
  // An operation was adopted, and has started.
  void OnAdopted(const Operation& operation);
  // Ends the operations that can find no partners. If it is known whose place
  // has moved on since the last time, no other is looked at.
  void FailLost(Member& member, std::optional<int> moved_on = std::nullopt);
  // The same for what has begun to wait for announcements in this turn.
  void FailNewLostWaits();
  // This rank's program has failed, in the step that it began last or on its
  // way to the next: gives up through the next, in these words. The others are
  // in no later one, but for steps ahead. The program knows.
  void GiveUpNext(Member& member, const std::string& why,
                  const GiveUpOptions& options);
  // The rank with this place has.
  void OnGivenUp(Member& member, int rank, const GivenUp& given_up);
  // An operation has ended; its caller has not been told.
  void BeforeEnd(const Operation& operation);
  // Its caller has: a name of steps that were given up meets by announcements
  // next.
  void AfterEnd(Operation& ended);

 private:
  // Whether an operation may still be announced. The caller holds the engine's
  // mutex.
  bool WillAnnounce(const UseId& use) const;
  // What came early for steps that this rank will not enter any more.
  void DropPast(Member& member, uint64_t step);
  // Nobody waits for an operation that departs in a step: the program has gone
  // on, maybe to the next one, and hears there that the step was given up.
  void GiveUpWhatFollows(Member& member, const Operation& departed);
  // Gives the member's steps up, and tells the peers.
  void GiveUp(Member& member, const GivenUp& given_up);

  const int job_rank_;
  const ActiveOperations& operations_;
  Matcher& matcher_;
  SharedState& shared_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_STEP_AGREEMENT_H_
