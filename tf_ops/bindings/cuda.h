// Work on a GPU's memory, without TensorFlow: addresses and streams are
// numbers, as every Python package for GPUs gives them.
#ifndef RING_KERAS_BINDINGS_CUDA_H_
#define RING_KERAS_BINDINGS_CUDA_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindCuda(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_CUDA_H_
