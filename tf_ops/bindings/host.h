// Collectives on NumPy arrays, in host memory, that go on beside Python.
#ifndef RING_KERAS_BINDINGS_HOST_H_
#define RING_KERAS_BINDINGS_HOST_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindHost(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_HOST_H_
