// The Python module ring_keras._torch_<X>_<Y>, for torch X.Y.
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "tf_ops/torch/backend.h"
#include "tf_ops/torch/completions.h"
#include "tf_ops/torch/roll_call.h"

namespace py = pybind11;

PYBIND11_MODULE(RING_KERAS_TORCH_MODULE, module) {
  py::module_::import("atexit").attr("register")(
      py::cpp_function(&ring_keras::torch_backend::EndThreads,
                       py::call_guard<py::gil_scoped_release>()));
  module.def(
      "new_backend",
      [](int rank, std::vector<int> ranks, int communicator_id, int pairs,
         c10::intrusive_ptr<c10d::Store> store, std::string prefix,
         double timeout_s,
         double engine_timeout_s) -> c10::intrusive_ptr<c10d::Backend> {
        const auto milliseconds = [](double seconds) {
          return std::chrono::milliseconds(
              static_cast<int64_t>(seconds * 1000));
        };
        return c10::make_intrusive<ring_keras::torch_backend::RingBackend>(
            rank, ranks, communicator_id, pairs,
            ring_keras::torch_backend::RollCall(
                rank, static_cast<int>(ranks.size()), std::move(store),
                std::move(prefix)),
            milliseconds(timeout_s), milliseconds(engine_timeout_s));
      },
      py::arg("rank"), py::arg("ranks"), py::arg("communicator_id"),
      py::arg("pairs"), py::arg("store"), py::arg("prefix"),
      py::arg("timeout_s"), py::arg("engine_timeout_s"));
}
