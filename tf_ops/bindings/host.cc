#include "tf_ops/bindings/host.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/bindings/arrays.h"
#include "tf_ops/bindings/calls.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/numpy_types.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/submitted_call.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// One of them. It keeps the arrays that the engine reads and writes.
class HostOperation {
 public:
  // Of outputs that are among the arrays. `blocks`: it is over when this
  // returns, by this thread's own work.
  HostOperation(Request request, std::vector<py::array> arrays, bool blocks)
      : arrays_(std::move(arrays)) {
    Begin(std::move(request), blocks);
  }

  // Of an output whose shape the engine finds out.
  HostOperation(Request request, const py::array& input, bool blocks)
      : arrays_{input}, output_(std::make_shared<ArrayOutput>(input)) {
    request.allocate_output = output_->Allocator();
    Begin(std::move(request), blocks);
  }

  // If it goes on, so does the engine's use of the arrays: they stay.
  ~HostOperation() {
    if (IsDone()) return;
    for (py::array& array : arrays_) (void)array.release();
  }
  HostOperation(const HostOperation&) = delete;
  HostOperation& operator=(const HostOperation&) = delete;

  void Wait() {
    if (call_ != nullptr) Await([&] { return call_->Wait(); });
  }

  bool IsDone() { return call_ == nullptr || call_->IsDone(); }

  py::array TakeOutput() {
    if (output_ == nullptr || !IsDone()) {
      throw py::value_error("there is no output to take: wait() comes first");
    }
    return std::exchange(output_, nullptr)->Take(arrays_.front().dtype());
  }

  std::vector<int64_t> ReceivedSplits() {
    return call_ == nullptr ? received_splits_ : call_->received_splits();
  }

 private:
  void Begin(Request request, bool blocks) {
    if (blocks) {
      request.received_splits = &received_splits_;
      Await([&] { return Runtime::Get().Run(std::move(request)); });
    } else {
      GilRelease release;
      call_ = SubmittedCall::Submit(std::move(request), 0, output_);
    }
  }

  std::vector<py::array> arrays_;
  std::shared_ptr<ArrayOutput> output_;
  std::shared_ptr<SubmittedCall> call_;   // Null: it is over.
  std::vector<int64_t> received_splits_;  // Of one that is over, an alltoall.
};

using Operation = std::unique_ptr<HostOperation>;

// Into `outs`, which may be the same arrays.
Operation StartInto(Request request, std::vector<py::array> arrays,
                    const std::vector<py::array>& outs, bool blocks) {
  if (outs.size() != arrays.size()) {
    throw py::value_error(StrCat("expected an output for each of ",
                                 arrays.size(), " arrays, got ", outs.size(),
                                 "."));
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!IsContiguous(arrays[i]) ||
        !arrays[i].dtype().equal(arrays[0].dtype())) {
      throw py::value_error(
          StrCat("arrays must be C-contiguous and of one dtype; number ", i,
                 " is not."));
    }
    AddInput(request, arrays[i]);
    py::array out = CheckedOutput(outs[i], arrays[i]);
    request.outputs.push_back(out.mutable_data());
  }
  arrays.insert(arrays.end(), outs.begin(), outs.end());
  return std::make_unique<HostOperation>(std::move(request), std::move(arrays),
                                         blocks);
}

// What `attributes.h` has for ops; "" is none.
StepRole ParseStepRole(const std::string& step) {
  if (step.empty()) return StepRole::kNone;
  if (step == "begins") return StepRole::kBegins;
  if (step == "begins_apart") return StepRole::kBeginsApart;
  if (step == "continues") return StepRole::kContinues;
  throw py::value_error(StrCat("there is no step '", step, "'."));
}

Operation StartAllreduce(const std::vector<py::array>& arrays,
                         const std::vector<py::array>& outs,
                         const std::string& op, const std::string& name,
                         int communicator_id, double prescale, double postscale,
                         double weight,
                         const std::optional<std::string>& wire_dtype,
                         const std::string& step, int64_t plan, bool blocks) {
  Request request =
      MakeRequest(CollectiveKind::kAllreduce, name, communicator_id);
  request.reduce_op = ParseReduceOp(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.weight = weight;
  request.step_role = ParseStepRole(step);
  request.plan = plan;
  if (wire_dtype.has_value()) request.wire_dtype = ParseDataType(*wire_dtype);
  return StartInto(std::move(request), arrays, outs, blocks);
}

Operation StartBroadcast(const std::vector<py::array>& arrays,
                         const std::vector<py::array>& outs, int root,
                         const std::string& name, int communicator_id,
                         int64_t plan, bool blocks) {
  Request request =
      MakeRequest(CollectiveKind::kBroadcast, name, communicator_id);
  request.root = root;
  request.plan = plan;
  return StartInto(std::move(request), arrays, outs, blocks);
}

Operation StartWithOutput(Request request, const py::array& array,
                          bool blocks) {
  const py::array input = Contiguous(array);
  AddInput(request, input);
  return std::make_unique<HostOperation>(std::move(request), input, blocks);
}

Operation StartAllgather(const py::array& array, const std::string& name,
                         int communicator_id, bool blocks) {
  return StartWithOutput(
      MakeRequest(CollectiveKind::kAllgather, name, communicator_id), array,
      blocks);
}

Operation StartReduceScatter(const py::array& array, const std::string& op,
                             const std::string& name, int communicator_id,
                             double prescale, double postscale, bool blocks) {
  Request request =
      MakeRequest(CollectiveKind::kReduceScatter, name, communicator_id);
  request.reduce_op = ParseReduceOp(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return StartWithOutput(std::move(request), array, blocks);
}

Operation StartAlltoall(const py::array& array,
                        const std::optional<std::vector<int64_t>>& splits,
                        const std::string& name, int communicator_id,
                        bool blocks) {
  Request request =
      MakeRequest(CollectiveKind::kAlltoall, name, communicator_id);
  request.splits = splits.value_or(std::vector<int64_t>());
  return StartWithOutput(std::move(request), array, blocks);
}

}  // namespace

void BindHost(py::module_& module) {
  py::class_<HostOperation>(module, "HostOperation")
      .def("wait", &HostOperation::Wait)
      .def("is_done", &HostOperation::IsDone)
      .def("take_output", &HostOperation::TakeOutput)
      .def("received_splits", &HostOperation::ReceivedSplits);

  module.def("start_allreduce", &StartAllreduce, py::arg("arrays"),
             py::arg("outs"), py::arg("op"), py::arg("name"),
             py::arg("communicator_id") = 0, py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0, py::arg("weight") = 1.0,
             py::arg("wire_dtype") = py::none(), py::arg("step") = "",
             py::arg("plan") = 0, py::arg("blocks") = false);
  module.def("start_broadcast", &StartBroadcast, py::arg("arrays"),
             py::arg("outs"), py::arg("root"), py::arg("name"),
             py::arg("communicator_id") = 0, py::arg("plan") = 0,
             py::arg("blocks") = false);
  module.def("start_allgather", &StartAllgather, py::arg("array"),
             py::arg("name"), py::arg("communicator_id") = 0,
             py::arg("blocks") = false);
  module.def("start_reduce_scatter", &StartReduceScatter, py::arg("array"),
             py::arg("op"), py::arg("name"), py::arg("communicator_id") = 0,
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
             py::arg("blocks") = false);
  module.def("start_alltoall", &StartAlltoall, py::arg("array"),
             py::arg("splits"), py::arg("name"), py::arg("communicator_id") = 0,
             py::arg("blocks") = false);
}

}  // namespace ring_keras
