// Memory and streams of a GPU for who has no framework that gives them.
#ifndef RING_KERAS_BINDINGS_DEVICE_MEMORY_H_
#define RING_KERAS_BINDINGS_DEVICE_MEMORY_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindDeviceMemory(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_DEVICE_MEMORY_H_
