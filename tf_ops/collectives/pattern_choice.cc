#include "tf_ops/collectives/pattern_choice.h"

namespace ring_keras {

LanePattern* PickPattern(const Tuning& tuning, DataType wire_dtype, int members,
                         size_t nbytes, size_t message_nbytes) {
  // What travels in 16 bits is rounded once, rather than at every step, and its
  // sums may be out of range until they are multiplied.
  if (Is16BitFloat(wire_dtype)) return ReduceByParts;
  const Thresholds thresholds(tuning, members, message_nbytes);
  if (nbytes <= thresholds.recursive_doubling_max_bytes) {
    return ReduceByDoubling;
  }
  if (nbytes <= thresholds.parts_max_bytes) return ReduceByParts;
  if (nbytes <= thresholds.halving_max_bytes) return ReduceByHalving;
  if (nbytes <= thresholds.trees_max_bytes) return ReduceByTrees;
  return ReduceByRing;
}

LanePattern* PickHalfPattern(const Tuning& tuning, DataType wire_dtype,
                             int members, size_t nbytes) {
  LanePattern* pattern = PickPattern(tuning, wire_dtype, members, nbytes);
  if (pattern != ReduceByDoubling && pattern != ReduceByTrees) return pattern;
  // Few members need one trip, and many the fewest that there can be.
  const Thresholds thresholds(tuning, members);
  return nbytes <= thresholds.parts_max_bytes ? ReduceByParts : ReduceByHalving;
}

}  // namespace ring_keras
