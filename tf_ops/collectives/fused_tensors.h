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
  // The tensors in their order, no gaps. Of a kReduceScatter they have no
  // outputs.
  explicit FusedTensors(const CollectiveArguments& arguments);
  // By rank: those of a kBroadcast that it sends.
  static std::vector<FusedTensors> ByRoot(const CollectiveArguments& arguments,
                                          int size);

  size_t nbytes() const { return nbytes_; }

  // Calls visit(input, output, offset, nbytes) for each stretch of the range
  // [begin, end) that lies in one tensor; `offset` is relative to `begin`.
  template <typename Visit>
  void ForEach(size_t begin, size_t end, Visit visit) const {
    auto tensor = std::upper_bound(
        tensors_.begin(), tensors_.end(), begin,
        [](size_t at, const Tensor& other) { return at < other.end; });
    for (size_t at = begin; at < end; ++tensor) {
      const size_t stop = std::min(end, tensor->end);
      if (stop > at) {
        const size_t within = at - tensor->begin;
        char* output =
            tensor->output == nullptr ? nullptr : tensor->output + within;
        visit(tensor->input + within, output, at - begin, stop - at);
        at = stop;
      }
    }
  }

 private:
  FusedTensors() = default;
  void Add(const CollectiveArguments& arguments, size_t index);

  struct Tensor {
    const char* input;
    char* output;
    size_t begin;
    size_t end;
  };
  std::vector<Tensor> tensors_;
  size_t nbytes_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_FUSED_TENSORS_H_
