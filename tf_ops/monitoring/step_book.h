// The steps of training that this rank took, as it saw them.
//
// Each is one of a communicator, whose ranks train together: the whole job's,
// or another one's while the rank trains with its ranks.
//
// A step lasts from the end of the last collective of the step before, or from
// BeginSteps(), to the end of its own last collective. Which that was is known
// when the next step begins.
#ifndef RING_KERAS_MONITORING_STEP_BOOK_H_
#define RING_KERAS_MONITORING_STEP_BOOK_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "tf_ops/monitoring/collective_record.h"
#include "tf_ops/monitoring/standstill.h"

namespace ring_keras {

// duration = input + compute + wait + exposed.
struct StepRecord {
  uint64_t step = 0;  // The communicator's number.
  int communicator_id = 0;
  Ticks began_at = 0;
  Ticks duration = 0;
  Ticks input = 0;
  Ticks compute = 0;
  Ticks wait = 0;
  Ticks exposed = 0;
  Ticks overlap = 0;
  uint64_t nbytes = 0;
  uint64_t collectives = 0;
  double examples = 0;  // 0: unknown.
  // By rank, how much of `wait` was for it.
  std::vector<Ticks> waited_for;
};

// Sums; `step` counts them, `began_at` is the first one's, and
// `communicator_id` the last one's.
using StepTotals = StepRecord;

// The driver's, but for AddInput.
class StepBook {
 public:
  static constexpr size_t kSteps = 1024;

  StepBook(int rank, int size);

  // A collective that begins a step has arrived.
  void BeginStep(const CollectiveRecord& first);
  // Steps follow, and what has passed since the last one belongs to none.
  void BeginSteps(Ticks now);
  // A collective has ended. `alone`: the program stood still for it from its
  // arrival to its end, and nothing else was under way.
  void Add(const CollectiveRecord& ended, bool alone);
  // The program stood still for a batch of so many examples; 0 if that is
  // unknown. From any thread.
  void AddInput(Ticks from, Ticks to, double examples);

  // The last ones, oldest first. `idle`: nothing is under way, so the step that
  // is open is complete as far as anyone can tell.
  std::vector<StepRecord> Steps(bool idle) const;
  StepTotals Totals(bool idle) const;
  // For how long the program has stood still for collectives that have ended,
  // in steps or between them.
  Ticks StoodStill(Ticks now) const;

 private:
  // What has been added up without a look at single moments.
  struct Sums {
    Ticks wait = 0;
    Ticks exposed = 0;
    Ticks input = 0;
    Ticks overlap = 0;
    uint64_t nbytes = 0;
    uint64_t collectives = 0;
    std::vector<Ticks> waited_for;
  };
  struct Batch {
    Ticks came_at;
    double examples;
  };

  bool is_open() const { return ended_at_ > began_at_; }
  Standing StandingOf(const CollectiveRecord& ended) const;
  // The open step, complete.
  StepRecord Finished() const;
  void Close();
  // Makes room for more collectives of a step without end.
  void Fold(Ticks now);
  // Those that have ended. The caller holds input_mutex_.
  void ForgetInputs(Ticks until);
  // Of the open step. The caller holds input_mutex_.
  double ExamplesSoFar() const;
  static void Append(Sums& to, const Sums& what);
  static void Append(Sums& to, const Standstill& what);
  static void Clear(Sums& sums);
  static void Append(StepTotals& to, const StepRecord& what);

  const int rank_;
  const int size_;

  // The open step, from 1; 0: none has begun.
  uint64_t step_ = 0;
  int communicator_id_ = 0;
  Ticks began_at_ = 0;
  Ticks ended_at_ = 0;   // Of the last collective in it, so far.
  Ticks folded_to_ = 0;  // What was before is in the sums.
  Sums inside_;          // Up to ended_at_.
  Sums after_;           // Since then.
  std::vector<Standing> standings_;

  std::deque<StepRecord> steps_;
  StepTotals totals_;

  mutable std::mutex input_mutex_;  // Guards the following.
  Spans inputs_;
  // Of the open step and later.
  std::vector<Batch> batches_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_STEP_BOOK_H_
