#include "tf_ops/bindings/tls.h"

#include <memory>
#include <string>
#include <utility>

#include "tf_ops/tls/tls_buffer.h"

namespace ring_keras {
namespace {

namespace py = pybind11;

// Errors are ValueErrors: those of ring_keras would bring TensorFlow, for which
// a launcher has no use.
template <typename Value>
Value OrValueError(StatusOr<Value> value) {
  if (!value.ok()) throw py::value_error(value.status().CodedMessage());
  return std::move(value.value());
}

std::unique_ptr<tls::Buffer> Make(bool server, const py::bytes& key) {
  return OrValueError(tls::Buffer::Create(
      server ? tls::Role::kServer : tls::Role::kClient, key));
}

}  // namespace

void BindTls(py::module_& module) {
  py::class_<tls::Buffer>(module, "TlsBuffer")
      .def(py::init(&Make), py::kw_only(), py::arg("server"), py::arg("key"))
      .def(
          "push",
          [](tls::Buffer& buffer, const py::bytes& plain) {
            buffer.Push(plain);
          },
          py::arg("plain"))
      .def(
          "take",
          [](tls::Buffer& buffer, const py::bytes& came) {
            return py::bytes(OrValueError(buffer.Take(came)));
          },
          py::arg("came"))
      .def("outgoing",
           [](tls::Buffer& buffer) { return py::bytes(buffer.Outgoing()); });
}

}  // namespace ring_keras
