// TLS for what the launcher's processes say to each other.
#ifndef RING_KERAS_BINDINGS_TLS_H_
#define RING_KERAS_BINDINGS_TLS_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindTls(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_TLS_H_
