// Updates of weights by their gradients, each in one pass over memory.
#ifndef RING_KERAS_REDUCE_UPDATES_H_
#define RING_KERAS_REDUCE_UPDATES_H_

#include <cstddef>

#include "tf_ops/common/export.h"

namespace ring_keras {

// Of `count` elements each; arrays must not overlap. T is float or double.
//
// Every sum, product, quotient and root is rounded by itself, in the caller's
// rounding mode and with its flushing of denormals: the bits are those of one
// TensorFlow op after the other on the same thread, whatever the processor.

// Gradient descent with momentum:
//   momentum = momentum * decay - gradient * rate
//   variable += momentum                          or, if `nesterov`,
//   variable += momentum * decay - gradient * rate
template <typename T>
struct MomentumUpdate {
  T rate;
  T decay;
  bool nesterov;
  RING_KERAS_EXPORT void Run(T* variable, T* momentum, const T* gradient,
                             size_t count) const;
};

// Adam, whose bias corrections are in `rate`:
//   momentum += (gradient - momentum) * momentum_share
//   velocity += (gradient * gradient - velocity) * velocity_share
//   variable -= momentum * rate / (sqrt(velocity) + epsilon)
template <typename T>
struct AdamUpdate {
  T rate;
  T momentum_share;
  T velocity_share;
  T epsilon;
  RING_KERAS_EXPORT void Run(T* variable, T* momentum, T* velocity,
                             const T* gradient, size_t count) const;
};

}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_UPDATES_H_
