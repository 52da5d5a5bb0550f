// Which of NVIDIA's libraries this machine has.
#ifndef RING_KERAS_BINDINGS_CUDA_LIBRARIES_H_
#define RING_KERAS_BINDINGS_CUDA_LIBRARIES_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindCudaLibraries(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_CUDA_LIBRARIES_H_
