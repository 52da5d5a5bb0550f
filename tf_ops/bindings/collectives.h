// Collectives on NumPy arrays, without TensorFlow.
#ifndef RING_KERAS_BINDINGS_COLLECTIVES_H_
#define RING_KERAS_BINDINGS_COLLECTIVES_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindCollectives(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_COLLECTIVES_H_
