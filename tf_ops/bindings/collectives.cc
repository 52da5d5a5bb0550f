#include "tf_ops/bindings/collectives.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/bindings/arrays.h"
#include "tf_ops/bindings/calls.h"
#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/numpy_types.h"
#include "tf_ops/runtime/departed_calls.h"
#include "tf_ops/runtime/repeated_call.h"
#include "tf_ops/runtime/runtime.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

void RunRequest(Request request) {
  Await([&] { return Runtime::Get().Run(std::move(request)); });
}

// Runs a request whose output's shape the engine finds out.
py::array RunWithOutput(Request request, const py::array& input) {
  ArrayOutput output(input);
  request.allocate_output = output.Allocator();
  RunRequest(std::move(request));
  return output.Take(input.dtype());
}

Request AllreduceRequest(const py::array& input, py::array& output,
                         const std::string& op, const std::string& name,
                         int communicator_id) {
  Request request =
      MakeRequest(CollectiveKind::kAllreduce, name, communicator_id);
  request.reduce_op = ParseReduceOp(op);
  AddInput(request, input);
  request.outputs = {output.mutable_data()};
  return request;
}

py::array Allreduce(const py::array& array, const std::string& op,
                    const std::string& name,
                    const std::optional<py::array>& out, int communicator_id,
                    double prescale, double postscale,
                    const std::optional<std::string>& wire_dtype,
                    bool precedes_step) {
  const py::array input = Contiguous(array);
  py::array output =
      out.has_value() ? CheckedOutput(*out, input) : NewLike(input);
  Request request = AllreduceRequest(input, output, op, name, communicator_id);
  request.prescale = prescale;
  request.postscale = postscale;
  if (wire_dtype.has_value()) request.wire_dtype = ParseDataType(*wire_dtype);
  if (precedes_step) request.step_role = StepRole::kPrecedes;
  RunRequest(std::move(request));
  return output;
}

// A function that reduces `input` into `out` and returns that. It keeps both.
py::cpp_function PrepareAllreduce(const py::array& input, const std::string& op,
                                  const std::string& name, const py::array& out,
                                  int communicator_id) {
  if (!IsContiguous(input)) {
    throw py::value_error(
        "array must be C-contiguous; np.ascontiguousarray makes a copy that "
        "is.");
  }
  py::array output = CheckedOutput(out, input);
  auto call = std::make_unique<RepeatedCall>(
      AllreduceRequest(input, output, op, name, communicator_id));
  return py::cpp_function(
      [call = std::move(call), input, output = std::move(output)] {
        ForgetRaised();
        std::optional<GilRelease> release;
        const Status status =
            Runtime::Get().Run(*call, [&release] { release.emplace(); });
        release.reset();
        ThrowIfHandlerRaised();
        ThrowIfError(status);
        return output;
      });
}

py::array SharedEmpty(const std::vector<py::ssize_t>& shape,
                      const py::object& dtype_like) {
  const py::dtype dtype = py::dtype::from_args(dtype_like);
  py::ssize_t nbytes = dtype.itemsize();
  for (py::ssize_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(nbytes, dimension, &nbytes)) {
      throw py::value_error(
          StrCat("expected a shape of a possible size, got ",
                 DebugString(Shape(shape.begin(), shape.end()))));
    }
  }
  auto buffer = [&] {
    GilRelease release;  // shutdown() may be waiting for a thread.
    return Runtime::Get().AllocateBuffer(nbytes);
  }();
  ThrowIfError(buffer.status());
  void* data = buffer.value().get();
  auto owner = std::make_unique<std::shared_ptr<void>>(buffer.value());
  py::capsule keeper(owner.release(), [](void* kept) {
    delete static_cast<std::shared_ptr<void>*>(kept);
  });
  return py::array(dtype, shape, data, keeper);
}

py::array Broadcast(const py::array& array, int root, const std::string& name,
                    int communicator_id) {
  const py::array input = Contiguous(array);
  py::array output = NewLike(input);
  Request request =
      MakeRequest(CollectiveKind::kBroadcast, name, communicator_id);
  request.root = root;
  AddInput(request, input);
  request.outputs = {output.mutable_data()};
  RunRequest(std::move(request));
  return output;
}

py::array Allgather(const py::array& array, const std::string& name,
                    int communicator_id) {
  const py::array input = Contiguous(array);
  Request request =
      MakeRequest(CollectiveKind::kAllgather, name, communicator_id);
  AddInput(request, input);
  return RunWithOutput(std::move(request), input);
}

py::array ReduceScatter(const py::array& array, const std::string& op,
                        const std::string& name, int communicator_id,
                        double prescale, double postscale) {
  const py::array input = Contiguous(array);
  Request request =
      MakeRequest(CollectiveKind::kReduceScatter, name, communicator_id);
  request.reduce_op = ParseReduceOp(op);
  request.prescale = prescale;
  request.postscale = postscale;
  AddInput(request, input);
  return RunWithOutput(std::move(request), input);
}

std::pair<py::array, py::array> Alltoall(
    const py::array& array, const std::optional<std::vector<int64_t>>& splits,
    const std::string& name, int communicator_id) {
  const py::array input = Contiguous(array);
  std::vector<int64_t> received_splits;
  Request request =
      MakeRequest(CollectiveKind::kAlltoall, name, communicator_id);
  request.splits = splits.value_or(std::vector<int64_t>());
  request.received_splits = &received_splits;
  AddInput(request, input);
  py::array output = RunWithOutput(std::move(request), input);
  return {output, py::array(py::cast(received_splits))};
}

void Barrier(const std::string& name, int communicator_id) {
  RunRequest(MakeRequest(CollectiveKind::kBarrier, name, communicator_id));
}

// Has the peers that enter the barrier, now or later, end it with an error, and
// waits for none of them. The caller knows why.
void StayAway(const std::string& name, int communicator_id,
              const std::string& why) {
  Request request =
      MakeRequest(CollectiveKind::kBarrier, name, communicator_id);
  request.able = Status(StatusCode::kInvalidArgument, why);
  (void)WithoutGil([&] { return Runtime::Get().Run(std::move(request)); });
}

int Join(int communicator_id, std::vector<int64_t> needed_in_plans,
         const std::string& why_needed) {
  Request request =
      MakeRequest(CollectiveKind::kJoin, "ring_keras/join", communicator_id);
  int last_joined = 0;
  request.last_joined = &last_joined;
  request.needed_in_plans = std::move(needed_in_plans);
  request.why_needed = why_needed;
  RunRequest(std::move(request));
  return last_joined;
}

}  // namespace

void BindCollectives(py::module_& module) {
  module.def("new_departure_slot",
             [] { return DepartedCalls::Get().NewSlot(); });
  module.def(
      "forget_departed",
      [](int64_t slot) { (void)DepartedCalls::Get().Take(slot); },
      py::arg("slot"));
  module.def("allreduce", &Allreduce, py::arg("array"), py::arg("op") = "sum",
             py::arg("name") = "", py::arg("out") = py::none(),
             py::arg("communicator_id") = 0, py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0, py::arg("wire_dtype") = py::none(),
             py::arg("precedes_step") = false);
  module.def("prepare_allreduce", &PrepareAllreduce, py::arg("array"),
             py::arg("op"), py::arg("name"), py::arg("out"),
             py::arg("communicator_id") = 0);
  module.def("shared_empty", &SharedEmpty, py::arg("shape"), py::arg("dtype"));
  module.def("broadcast", &Broadcast, py::arg("array"), py::arg("root"),
             py::arg("name") = "", py::arg("communicator_id") = 0);
  module.def("allgather", &Allgather, py::arg("array"), py::arg("name") = "",
             py::arg("communicator_id") = 0);
  module.def("reduce_scatter", &ReduceScatter, py::arg("array"),
             py::arg("op") = "sum", py::arg("name") = "",
             py::arg("communicator_id") = 0, py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0);
  module.def("alltoall", &Alltoall, py::arg("array"),
             py::arg("splits") = py::none(), py::arg("name") = "",
             py::arg("communicator_id") = 0);
  module.def("stay_away", &StayAway, py::arg("name"),
             py::arg("communicator_id"), py::arg("why"));
  module.def("barrier", &Barrier, py::arg("name") = "",
             py::arg("communicator_id") = 0);
  module.def("join", &Join, py::arg("communicator_id") = 0,
             py::arg("needed_in_plans") = std::vector<int64_t>(),
             py::arg("why_needed") = "");
}

}  // namespace ring_keras
