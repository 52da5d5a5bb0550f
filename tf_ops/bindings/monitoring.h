// What the engine has noted: steps, totals, collectives.
#ifndef RING_KERAS_BINDINGS_MONITORING_H_
#define RING_KERAS_BINDINGS_MONITORING_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindMonitoring(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_MONITORING_H_
