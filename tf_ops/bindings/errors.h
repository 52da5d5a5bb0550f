// Status becomes a Python exception here and nowhere else.
#ifndef RING_KERAS_BINDINGS_ERRORS_H_
#define RING_KERAS_BINDINGS_ERRORS_H_

#include <utility>

#include "tf_ops/common/status.h"

namespace ring_keras {

// Throws the exception for `status` unless it is Ok. Needs the GIL.
void ThrowIfError(const Status& status);

template <typename T>
T ValueOrThrow(StatusOr<T> value) {
  ThrowIfError(value.status());
  return std::move(value.value());
}

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_ERRORS_H_
