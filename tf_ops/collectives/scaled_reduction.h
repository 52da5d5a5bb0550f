// The arithmetic of one reduction: scale, combine, scale.
//
// A result that 16 bits can hold is found although sums on the way to it could
// not be held: where a sum is formed in one place, it is multiplied in float32
// before it is rounded; where sums travel in 16 bits, Headroom() goes first.
#ifndef RING_KERAS_COLLECTIVES_SCALED_REDUCTION_H_
#define RING_KERAS_COLLECTIVES_SCALED_REDUCTION_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/collective.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {

// How the ranks' weights enter an average.
struct Weighting {
  // What has weight w is multiplied by w times that before it is summed up, and
  // so by 1 at most; none where all ranks weigh the same.
  std::optional<double> share;
  // The sum is divided by that.
  double divisor;

  explicit Weighting(const Participants& participants)
      : divisor(static_cast<double>(participants.size())) {
    double total = 0;
    double largest = 0;
    bool equal = true;
    for (const Participant& participant : participants) {
      total += participant.weight;
      largest = std::max(largest, participant.weight);
      equal &= participant.weight == participants[0].weight;
    }
    if (equal && total > 0) return;
    share = total > 0 ? 1 / largest : 0;
    if (total > 0) divisor = total / largest;
  }
};

struct PlainCopy {
  void operator()(void* to, const void* from, size_t nbytes) const {
    std::memcpy(to, from, nbytes);
  }
};

// Sizes are in bytes and whole elements.
class ScaledReduction {
 public:
  explicit ScaledReduction(const CollectiveArguments& arguments)
      : ScaledReduction(arguments.dtype, arguments.reduce_op,
                        arguments.postscale) {
    prescale_ = arguments.prescale;
    weight_ = arguments.weight;
  }
  // An average adds like a sum until Begin says what it divides by.
  ScaledReduction(DataType dtype, ReduceOp op, double postscale)
      : dtype_(dtype),
        op_(op),
        element_nbytes_(SizeOf(dtype)),
        postscale_(postscale) {}

  // Every rank is there: says what an average divides by. Call once, before
  // Combine and Finish. Whether CopyIn did something else before: weights that
  // differ go into it.
  bool Begin(const Participants& participants) {
    if (op_ != ReduceOp::kAverage) return false;
    const Weighting weighting(participants);
    postscale_ /= weighting.divisor;
    if (weighting.share.has_value()) prescale_ *= weight_ * *weighting.share;
    return weighting.share.has_value();
  }

  double prescale() const { return prescale_; }
  // What multiplies the result, an average's division included.
  double postscale() const { return postscale_; }
  void set_postscale(double postscale) { postscale_ = postscale; }
  size_t element_nbytes() const { return element_nbytes_; }
  ReduceFunction function() const { return GetReduceFunction(dtype_, op_); }

  // What multiplies sums of `terms` values that travel as `dtype`, for all that
  // is left of postscale() to come after: 1, or a power of two, so that nothing
  // is rounded. Such a sum is then no larger than the largest of the values, or
  // than the result.
  double Headroom(DataType dtype, int terms) const {
    const bool sums = op_ == ReduceOp::kSum || op_ == ReduceOp::kAverage;
    if (!Is16BitFloat(dtype) || !sums || !(std::abs(postscale_) < 1)) return 1;
    const double enough = std::scalbn(1.0, -std::ilogb(2.0 * terms - 1));
    return postscale_ == 0
               ? enough
               : std::max(enough, std::scalbn(1.0, std::ilogb(postscale_)));
  }

  // to = from * prescale, by `copy` if that is 1; `to` may be `from`.
  template <typename Copy = PlainCopy>
  void CopyIn(void* to, const void* from, size_t nbytes,
              Copy&& copy = {}) const {
    if (prescale_ != 1.0) {
      Scale(dtype_, to, from, prescale_, nbytes / element_nbytes_);
    } else if (to != from && nbytes > 0) {
      copy(to, from, nbytes);
    }
  }

  // Each output = the sources combined in their order, times postscale.
  // Integers with one are read back, also from where they were streamed to.
  void Combine(const ReduceOutput* outs, int out_count,
               const void* const* sources, int source_count,
               size_t nbytes) const {
    const size_t count = nbytes / element_nbytes_;
    if (postscale_ != 1.0 && IsFloatingPoint(dtype_)) {
      ReduceManyScaled(dtype_, op_, outs, out_count, sources, source_count,
                       postscale_, count);
    } else {
      ReduceMany(dtype_, op_, outs, out_count, sources, source_count, count);
      for (int i = 0; i < out_count; ++i) Finish(outs[i].data, nbytes);
    }
  }
  void Combine(void* out, const void* const* sources, int source_count,
               size_t nbytes) const {
    const ReduceOutput to = {out};
    Combine(&to, 1, sources, source_count, nbytes);
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
  double prescale_ = 1.0;
  double postscale_;
  double weight_ = 1.0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SCALED_REDUCTION_H_
