// Several tensors seen as one run of bytes: fusion without a copy of its own.
#ifndef RING_KERAS_COLLECTIVES_FUSED_TENSORS_H_
#define RING_KERAS_COLLECTIVES_FUSED_TENSORS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tf_ops/collectives/arguments.h"

namespace ring_keras {

class FusedTensors {
 public:
  // The tensors of a kAllreduce or kBroadcast, in their order, no gaps.
  explicit FusedTensors(const CollectiveArguments& arguments);

  size_t nbytes() const { return starts_.back(); }

  // Calls visit(input, output, offset, nbytes) for each stretch of the range
  // [begin, end) that lies in one tensor; `offset` is relative to `begin`.
  template <typename Visit>
  void ForEach(size_t begin, size_t end, Visit visit) const {
    size_t tensor = std::upper_bound(starts_.begin(), starts_.end(), begin) -
                    starts_.begin() - 1;
    for (size_t at = begin; at < end; ++tensor) {
      const size_t stop = std::min(end, starts_[tensor + 1]);
      if (stop > at) {
        const size_t within = at - starts_[tensor];
        visit(inputs_[tensor] + within, outputs_[tensor] + within, at - begin,
              stop - at);
        at = stop;
      }
    }
  }

 private:
  std::vector<const char*> inputs_;
  std::vector<char*> outputs_;
  std::vector<size_t> starts_;  // One more than tensors: the last is the end.
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_FUSED_TENSORS_H_
