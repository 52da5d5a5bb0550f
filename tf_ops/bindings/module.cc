// The Python module ring_keras._native.
#include <pybind11/pybind11.h>

#include "tf_ops/bindings/collectives.h"
#include "tf_ops/bindings/cuda.h"
#include "tf_ops/bindings/cuda_libraries.h"
#include "tf_ops/bindings/device.h"
#include "tf_ops/bindings/device_memory.h"
#include "tf_ops/bindings/host.h"
#include "tf_ops/bindings/job.h"
#include "tf_ops/bindings/monitoring.h"
#include "tf_ops/bindings/signals.h"
#include "tf_ops/bindings/store_server.h"
#include "tf_ops/bindings/tls.h"
#include "tf_ops/reduce/reduce.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The C++ core of ring_keras; imports no TensorFlow.";
  ring_keras::HandlePythonSignals();
  ring_keras::BindJob(module);
  ring_keras::BindCollectives(module);
  ring_keras::BindCudaLibraries(module);
  ring_keras::BindDevice(module);
  ring_keras::BindDeviceMemory(module);
  ring_keras::BindHost(module);
  ring_keras::BindStoreServer(module);
  ring_keras::BindTls(module);
  ring_keras::BindCuda(module);
  ring_keras::BindMonitoring(module);
  module.def("version", [] { return RING_KERAS_VERSION; });
  module.def("instruction_set", &ring_keras::InstructionSet);
}
