// Numbers that stand for a collective, and for what its ranks must agree on.
#ifndef RING_KERAS_MATCHING_SIGNATURE_H_
#define RING_KERAS_MATCHING_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "tf_ops/collectives/arguments.h"

namespace ring_keras {

// Which collective of a communicator: the `sequence`-th use of its name or,
// within a step, the one use of the name in that step. Ranks may have used a
// name of steps unequally often, if one gave a step up; then `sequence`
// differs.
struct UseId {
  int32_t communicator_id = 0;
  std::string name;
  uint64_t sequence = 0;
  uint64_t step = 0;  // 0: in no step.

  bool in_step() const { return step != 0; }
  // Whether the two are the same collective.
  bool Meets(const UseId& other) const;
};

// The number by which messages name the collective: equal on every rank, and
// different for different collectives but for a chance of 2^-64.
uint64_t KeyOf(const UseId& use);

// Stands for all that must be equal on every rank; never 0. Different for
// different arguments, steps, or plans (see Request), but for a chance of
// 2^-64.
uint64_t SignatureOf(const CollectiveArguments& arguments, uint64_t step,
                     int64_t plan);

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_SIGNATURE_H_
