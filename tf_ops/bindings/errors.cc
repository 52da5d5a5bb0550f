#include "tf_ops/bindings/errors.h"

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace py = pybind11;

namespace ring_keras {
namespace {

// Our own classes are Python's, so that they can also be TensorFlow's errors;
// importing them only to raise keeps TensorFlow out of the launcher.
[[noreturn]] void ThrowOurs(const char* class_name, const Status& status) {
  py::object type;
  try {
    type = py::module_::import("ring_keras.errors").attr(class_name);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
    // There is no TensorFlow: who drives the core alone gets the same words.
    throw std::runtime_error(StrCat(class_name, ": ", status.CodedMessage()));
  }
  PyErr_SetObject(type.ptr(), type(status.CodedMessage()).ptr());
  throw py::error_already_set();
}

[[noreturn]] void ThrowBuiltin(PyObject* type, const Status& status) {
  PyErr_SetString(type, status.CodedMessage().c_str());
  throw py::error_already_set();
}

}  // namespace

void ThrowIfError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return;
    case StatusCode::kInvalidArgument:
      ThrowBuiltin(PyExc_ValueError, status);
    case StatusCode::kRankMismatch:
      ThrowOurs("RankMismatchError", status);
    case StatusCode::kPeerLost:
    case StatusCode::kPeerStopped:
      ThrowOurs("PeerLostError", status);
    case StatusCode::kDeadlineExceeded:
      ThrowOurs("CollectiveTimeoutError", status);
    case StatusCode::kNotInitialized:
      ThrowOurs("NotInitializedError", status);
    case StatusCode::kUnauthenticated:
    case StatusCode::kResourceExhausted:
    case StatusCode::kAborted:
    case StatusCode::kInterrupted:
    case StatusCode::kInternal:
      ThrowOurs("RingKerasError", status);
  }
}

}  // namespace ring_keras
