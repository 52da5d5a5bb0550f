// The arithmetic of one reduction: scale, combine, scale.
#ifndef RING_KERAS_COLLECTIVES_REDUCTION_H_
#define RING_KERAS_COLLECTIVES_REDUCTION_H_

#include <cstring>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {

// Sizes are in bytes and whole elements.
class Reduction {
 public:
  // `size`: ranks that take part, by which an average divides.
  Reduction(const CollectiveArguments& arguments, int size)
      : dtype_(arguments.dtype),
        op_(arguments.reduce_op),
        element_nbytes_(SizeOf(arguments.dtype)),
        prescale_(arguments.prescale),
        postscale_(op_ == ReduceOp::kAverage ? arguments.postscale / size
                                             : arguments.postscale) {}

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
    ReduceMany(dtype_, op_, out, sources, source_count,
               nbytes / element_nbytes_);
    Finish(out, nbytes);
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
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_REDUCTION_H_
