// The arithmetic of one reduction: scale, combine, scale.
#ifndef RING_KERAS_COLLECTIVES_REDUCTION_H_
#define RING_KERAS_COLLECTIVES_REDUCTION_H_

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/collective.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {

// How a rank of weight 1 counts in an average; none where all ranks weigh the
// same. What has weight w is multiplied by w times that before it is summed up.
inline std::optional<double> ShareOfWeight(const Participants& participants) {
  double total = 0;
  bool equal = true;
  for (const Participant& participant : participants) {
    total += participant.weight;
    equal &= participant.weight == participants[0].weight;
  }
  if (equal && total > 0) return std::nullopt;
  return total > 0 ? static_cast<double>(participants.size()) / total : 0;
}

// Sizes are in bytes and whole elements.
class Reduction {
 public:
  explicit Reduction(const CollectiveArguments& arguments)
      : dtype_(arguments.dtype),
        op_(arguments.reduce_op),
        element_nbytes_(SizeOf(arguments.dtype)),
        prescale_(arguments.prescale),
        postscale_(arguments.postscale),
        weight_(arguments.weight) {}

  // Every rank is there: says what an average divides by. Call once, before
  // Combine and Finish. Whether CopyIn did something else before: weights that
  // differ go into it, as shares of their mean.
  bool Begin(const Participants& participants) {
    if (op_ != ReduceOp::kAverage) return false;
    postscale_ /= static_cast<double>(participants.size());
    const std::optional<double> share = ShareOfWeight(participants);
    if (share.has_value()) prescale_ *= weight_ * *share;
    return share.has_value();
  }

  double prescale() const { return prescale_; }
  // What multiplies the result, an average's division included.
  double postscale() const { return postscale_; }
  size_t element_nbytes() const { return element_nbytes_; }
  ReduceFunction function() const { return GetReduceFunction(dtype_, op_); }

  // to = from * prescale; `to` may be `from`.
  void CopyIn(void* to, const void* from, size_t nbytes) const {
    if (prescale_ != 1.0) {
      Scale(dtype_, to, from, prescale_, nbytes / element_nbytes_);
    } else if (to != from && nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }

  // out = the sources combined in their order, times postscale.
  void Combine(void* out, const void* const* sources, int source_count,
               size_t nbytes) const {
    // In blocks that are still in L1 when they are scaled.
    constexpr size_t kBlockBytes = size_t{16} << 10;
    const size_t block = postscale_ == 1.0 ? nbytes : kBlockBytes;
    std::vector<const void*> at(sources, sources + source_count);
    for (size_t begin = 0; begin < nbytes; begin += block) {
      const size_t size = std::min(block, nbytes - begin);
      char* to = static_cast<char*>(out) + begin;
      ReduceMany(dtype_, op_, to, at.data(), source_count,
                 size / element_nbytes_);
      Finish(to, size);
      for (const void*& source : at) {
        source = static_cast<const char*>(source) + size;
      }
    }
  }

  // data *= postscale.
  void Finish(void* data, size_t nbytes) const {
    if (postscale_ != 1.0) {
      Scale(dtype_, data, data, postscale_, nbytes / element_nbytes_);
    }
  }

 private:
  DataType dtype_;
  ReduceOp op_;
  size_t element_nbytes_;
  double prescale_;
  double postscale_;
  double weight_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_REDUCTION_H_
