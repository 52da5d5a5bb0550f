// The Python module ring_keras._torch_<X>_<Y>, for torch X.Y.
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tf_ops/torch/backend.h"
#include "tf_ops/torch/completions.h"

namespace py = pybind11;

PYBIND11_MODULE(RING_KERAS_TORCH_MODULE, module) {
  py::module_::import("atexit").attr("register")(
      py::cpp_function(&ring_keras::torch_backend::EndThreads,
                       py::call_guard<py::gil_scoped_release>()));
  module.def(
      "new_backend",
      [](int rank, int size, int communicator_id, double timeout_s,
         double engine_timeout_s) -> c10::intrusive_ptr<c10d::Backend> {
        const auto milliseconds = [](double seconds) {
          return std::chrono::milliseconds(
              static_cast<int64_t>(seconds * 1000));
        };
        return c10::make_intrusive<ring_keras::torch_backend::RingBackend>(
            rank, size, communicator_id, milliseconds(timeout_s),
            milliseconds(engine_timeout_s));
      },
      py::arg("rank"), py::arg("size"), py::arg("communicator_id"),
      py::arg("timeout_s"), py::arg("engine_timeout_s"));
}
