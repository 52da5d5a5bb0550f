// Loops that the compiler makes vectors of, compiled without contraction of a
// product and a sum into one rounding (CMakeLists.txt).
#include "tf_ops/reduce/updates.h"

#include <cstddef>

#include "tf_ops/reduce/widest.h"

namespace ring_keras {
namespace {

RING_KERAS_INLINE float Root(float x) { return __builtin_sqrtf(x); }
RING_KERAS_INLINE double Root(double x) { return __builtin_sqrt(x); }

// What an update does to one element.
template <typename T>
RING_KERAS_INLINE void UpdateElement(const MomentumUpdate<T>& by, T& variable,
                                     T& momentum, const T& gradient) {
  const T descent = gradient * by.rate;
  momentum = momentum * by.decay - descent;
  variable += by.nesterov ? momentum * by.decay - descent : momentum;
}

template <typename T>
RING_KERAS_INLINE void UpdateElement(const AdamUpdate<T>& by, T& variable,
                                     T& momentum, T& velocity,
                                     const T& gradient) {
  momentum += (gradient - momentum) * by.momentum_share;
  velocity += (gradient * gradient - velocity) * by.velocity_share;
  variable -= momentum * by.rate / (Root(velocity) + by.epsilon);
}

struct UpdateAll {
  template <typename Update, typename... Elements>
  static RING_KERAS_INLINE void Run(const Update& by, size_t count,
                                    Elements* __restrict... arrays) {
    const Update settings = by;  // In registers, which no element can change.
    for (size_t i = 0; i < count; ++i) UpdateElement(settings, arrays[i]...);
  }
};

}  // namespace

template <typename T>
void MomentumUpdate<T>::Run(T* variable, T* momentum, const T* gradient,
                            size_t count) const {
  RunWidest<UpdateAll>(*this, count, variable, momentum, gradient);
}

template <typename T>
void AdamUpdate<T>::Run(T* variable, T* momentum, T* velocity,
                        const T* gradient, size_t count) const {
  RunWidest<UpdateAll>(*this, count, variable, momentum, velocity, gradient);
}

template struct MomentumUpdate<float>;
template struct MomentumUpdate<double>;
template struct AdamUpdate<float>;
template struct AdamUpdate<double>;

}  // namespace ring_keras
