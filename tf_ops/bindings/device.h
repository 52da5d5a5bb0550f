// Collectives on tensors in GPU memory, without TensorFlow: given by address,
// as torch, CuPy and others tell it.
#ifndef RING_KERAS_BINDINGS_DEVICE_H_
#define RING_KERAS_BINDINGS_DEVICE_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindDevice(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_DEVICE_H_
