// For how long a program stood still for its collectives, and why.
#ifndef RING_KERAS_MONITORING_STANDSTILL_H_
#define RING_KERAS_MONITORING_STANDSTILL_H_

#include <utility>
#include <vector>

#include "tf_ops/monitoring/collective_record.h"

namespace ring_keras {

// Spans of time, from and to.
using Spans = std::vector<std::pair<Ticks, Ticks>>;

// One collective's part in it.
struct Standing {
  Ticks awaited_at = 0;  // 0: nobody waits.
  Ticks arrived_at = 0;
  Ticks matched_at = 0;
  Ticks first_byte_at = 0;
  Ticks last_byte_at = 0;
  Ticks released_at = 0;
  int last_rank = -1;
  bool waits_for_peer = false;  // The last rank is not this one.
};

// What a span of time was spent on; of moments that are none of these, the
// program computed.
struct Standstill {
  Ticks wait = 0;     // It stood still, and nothing but a rank was missing.
  Ticks exposed = 0;  // It stood still for any other reason.
  Ticks input = 0;    // It stood still for its data.
  Ticks overlap = 0;  // Bytes moved, and it did not stand still.
  // Of `wait`, by the rank that was missing; as many as there are ranks.
  std::vector<Ticks> waited_for;
};

// Looks at each moment from `from` to `to` once, whatever overlaps. A moment of
// several kinds counts as exposed (bytes of a collective that the program
// waits for, or of another, move), else as wait, else as input.
Standstill FindStandstill(const std::vector<Standing>& collectives,
                          const Spans& inputs, Ticks from, Ticks to,
                          int job_size);

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_STANDSTILL_H_
