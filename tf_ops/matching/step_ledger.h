// In which step the ranks of a communicator are, as far as this rank knows.
//
// Collectives of a step meet by (name, step). A rank enters steps in ascending
// order: once it has announced anything of a step, it announces nothing of an
// earlier one. It may also *give up* all steps up to one, by a message; then it
// announces nothing of those any more. Messages of a rank arrive in the order
// in which it sent them. So:
//
// 1. passed(r) only grows, and a collective of a step <= passed(r) that r has
//    not announced by then, it never will.
// 2. All ranks see the same announcements of r before r passes a step.
//    Therefore a collective lacks r's on every rank or on none: either all
//    ranks run it, or none does. No rank waits for data of one that gave up.
// 3. A rank that gives up a step tells all others, and whoever hears of it
//    gives up as much. So, while no rank is lost, given_up(r) becomes the same
//    for all.
// 4. The next step that a rank enters is above all that it gave up: when all
//    have given up the same steps, all enter the same step next.
//
// What each rank finds out, for a collective of step s that lacks r's
// announcement:  passed(r) < s: wait.  passed(r) >= s: lost, on every rank.
#ifndef RING_KERAS_MATCHING_STEP_LEDGER_H_
#define RING_KERAS_MATCHING_STEP_LEDGER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras {

// A rank's word that it announces no more of the steps through `through`.
struct GivenUp {
  uint64_t through = 0;
  // With its error code before it.
  std::string why;
};

std::string Encode(const GivenUp& given_up);
// InvalidArgument when `bytes` is no such word.
StatusOr<GivenUp> DecodeGivenUp(const std::string& bytes);

// How a program gives up.
struct GiveUpOptions {
  // How many steps other ranks may have begun that this one has not, and then
  // be on the way to the next: in those all departs, and nobody waits.
  uint64_t steps_ahead = 0;
  // Whether to do nothing if the program knows by the communicator itself: then
  // all of its ranks do, or will.
  bool unless_heard = false;
};

// Not thread-safe. Ranks are places in the communicator.
class StepLedger {
 public:
  StepLedger(int size, int own_rank);

  // `rank` has announced something of `step`; whether it has passed more than
  // before.
  bool OnAnnounced(int rank, uint64_t step);
  // `rank`, which may be this one, has given up.
  void OnGivenUp(int rank, GivenUp given_up);

  // Whether `rank` announces nothing of `step` that it has not announced.
  bool HasPassed(int rank, uint64_t step) const {
    return step <= ranks_[rank].passed;
  }
  // The latest step in which `rank` is known to have been.
  uint64_t StepOf(int rank) const { return ranks_[rank].step; }
  // Of all ranks.
  uint64_t latest() const;

  // Whether this rank has given `step` up.
  bool GaveUp(uint64_t step) const {
    return step <= ranks_[own_rank_].given_up.through;
  }
  // Whether every rank has; then `why` is the same on all.
  bool AllGaveUp(uint64_t step) const;
  // In the first rank's words.
  Status why() const;

 private:
  struct Rank {
    uint64_t step = 0;
    uint64_t passed = 0;
    GivenUp given_up;
  };
  std::vector<Rank> ranks_;
  int own_rank_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_STEP_LEDGER_H_
