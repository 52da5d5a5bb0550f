// Joining and leaving the job, ranks and process sets.
#ifndef RING_KERAS_BINDINGS_JOB_H_
#define RING_KERAS_BINDINGS_JOB_H_

#include <pybind11/pybind11.h>

namespace ring_keras {

void BindJob(pybind11::module_& module);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_JOB_H_
