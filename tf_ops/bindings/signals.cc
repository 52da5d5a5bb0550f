#include "tf_ops/bindings/signals.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <utility>

#include "tf_ops/runtime/signals.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// What a handler raised in a wait, and no Python code has seen yet. TensorFlow
// makes an error of its own of the collective's; ring_keras/errors.py then asks
// for this one. Guarded by the GIL.
struct Raised {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
};
Raised raised;

// Python runs handlers in its main thread only, which is the process's.
bool Handle() {
  if (gettid() != getpid() || !Py_IsInitialized()) return false;
  py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0) return false;
  ForgetRaised();  // Of an earlier handler: the last word counts.
  PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
  return true;
}

}  // namespace

void HandlePythonSignals() { SetSignalHandling(&Handle); }

// With the GIL, as is whatever writes `raised`. Nothing was raised is what
// nearly every call finds: that must cost no system call.
void ForgetRaised() {
  if (raised.type == nullptr || gettid() != getpid()) return;
  const Raised old = std::exchange(raised, Raised());
  Py_XDECREF(old.type);
  Py_XDECREF(old.value);
  Py_XDECREF(old.traceback);
}

void ThrowIfHandlerRaised() {
  if (raised.type == nullptr || gettid() != getpid()) return;
  const Raised kept = std::exchange(raised, Raised());
  PyErr_Restore(kept.type, kept.value, kept.traceback);
  throw py::error_already_set();
}

}  // namespace ring_keras
