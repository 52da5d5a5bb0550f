// `_native.StoreServer`: the job's store, for the launcher.
#ifndef RING_KERAS_BINDINGS_STORE_SERVER_H_
#define RING_KERAS_BINDINGS_STORE_SERVER_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindStoreServer(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_STORE_SERVER_H_
