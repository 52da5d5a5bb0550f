// Numbers that stand for a collective, and for what its ranks must agree on.
#ifndef RING_KERAS_MATCHING_SIGNATURE_H_
#define RING_KERAS_MATCHING_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "tf_ops/collectives/arguments.h"

namespace ring_keras {

// One rank's use of a name on a communicator.
struct UseId {
  int32_t communicator_id = 0;
  std::string name;
  // Uses of the name before, as far as this rank remembers (name_table.h).
  uint64_t sequence = 0;
  uint64_t step = 0;  // 0: in no step.

  bool in_step() const { return step != 0; }
  // Whether the two are of the same name. Within a step, in which a name is
  // used once, they are the same collective then.
  bool Meets(const UseId& other) const;
};

// The number under which uses of a name look for each other: equal for those
// that meet, and different for others but for a chance of 2^-64.
uint64_t KeyOf(const UseId& use);

// The number by which messages name one collective. `number` is that of its
// first rank, who gives each another.
uint64_t DataKeyOf(const UseId& use, uint64_t number);

// Whether each rank may have its own number of rows, unless it wants them even.
bool RowsMayDiffer(CollectiveKind kind);

// Stands for all that must be equal on every rank; never 0. Different for
// different arguments, steps, or plans (see Request), but for a chance of
// 2^-64.
uint64_t SignatureOf(const CollectiveArguments& arguments, uint64_t step,
                     int64_t plan);

}  // namespace ring_keras

#endif  // RING_KERAS_MATCHING_SIGNATURE_H_
