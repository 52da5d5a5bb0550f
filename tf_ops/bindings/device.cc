#include "tf_ops/bindings/device.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/bindings/calls.h"
#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/numpy_types.h"
#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/submitted_call.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// Where a tensor is, and its shape.
using DeviceTensor = std::pair<uintptr_t, Shape>;

// Memory for an output whose shape the collective finds out: where it is, and
// how many bytes it has. Not a function of the caller's: the thread that would
// call it serves all collectives, and must not wait for the GIL.
using OutputMemory = std::pair<uintptr_t, size_t>;

void* ToPointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

Request MakeRequest(CollectiveKind kind, const std::string& name,
                    int communicator_id, const std::string& dtype,
                    const std::vector<DeviceTensor>& inputs) {
  Request request = MakeRequest(kind, name, communicator_id);
  request.dtype = ParseDataType(dtype);
  for (const auto& [address, shape] : inputs) {
    request.inputs.push_back({ToPointer(address), shape});
  }
  return request;
}

void SetOutputs(Request* request, const std::vector<uintptr_t>& outputs) {
  if (outputs.size() != request->inputs.size()) {
    throw py::value_error(StrCat("expected an output for each of ",
                                 request->inputs.size(), " inputs, got ",
                                 outputs.size(), "."));
  }
  for (const uintptr_t address : outputs) {
    request->outputs.push_back(ToPointer(address));
  }
}

void SetOutput(Request* request, const OutputMemory& memory) {
  request->allocate_output =
      [memory, dtype = request->dtype](const Shape& shape) -> StatusOr<void*> {
    const size_t needed = ElementCount(shape) * SizeOf(dtype);
    if (needed <= memory.second) return ToPointer(memory.first);
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("expected memory for an output of shape ", DebugString(shape),
               ", which takes ", needed, " bytes, got ", memory.second, "."));
  };
}

// The tensors are in the memory of `device`, and are used after what `stream`
// has been given so far.
std::shared_ptr<SubmittedCall> Submit(Request request, int device,
                                      uintptr_t stream) {
  auto work = [&] {
    GilRelease release;
    return DeviceWork::After(device, ToPointer(stream));
  }();
  if (!work.ok()) {
    request.able = work.status();  // So that the peers do not wait.
    Await([&] { return Runtime::Get().Run(std::move(request)); });
  }
  request.device_work = ValueOrThrow(std::move(work));
  GilRelease release;
  return SubmittedCall::Submit(std::move(request));
}

auto DeviceAllreduce(const std::vector<DeviceTensor>& inputs,
                     const std::vector<uintptr_t>& outputs,
                     const std::string& dtype, int device, uintptr_t stream,
                     const std::string& op, const std::string& name,
                     int communicator_id, double prescale, double postscale,
                     double weight,
                     const std::optional<std::string>& wire_dtype) {
  Request request = MakeRequest(CollectiveKind::kAllreduce, name,
                                communicator_id, dtype, inputs);
  SetOutputs(&request, outputs);
  request.reduce_op = ParseReduceOp(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.weight = weight;
  if (wire_dtype.has_value()) request.wire_dtype = ParseDataType(*wire_dtype);
  return Submit(std::move(request), device, stream);
}

auto DeviceBroadcast(const std::vector<DeviceTensor>& inputs,
                     const std::vector<uintptr_t>& outputs,
                     const std::string& dtype, int device, uintptr_t stream,
                     int root, const std::string& name, int communicator_id) {
  Request request = MakeRequest(CollectiveKind::kBroadcast, name,
                                communicator_id, dtype, inputs);
  SetOutputs(&request, outputs);
  request.root = root;
  return Submit(std::move(request), device, stream);
}

auto DeviceAllgather(const DeviceTensor& input, const OutputMemory& output,
                     const std::string& dtype, int device, uintptr_t stream,
                     const std::string& name, int communicator_id) {
  Request request = MakeRequest(CollectiveKind::kAllgather, name,
                                communicator_id, dtype, {input});
  SetOutput(&request, output);
  return Submit(std::move(request), device, stream);
}

auto DeviceReduceScatter(const DeviceTensor& input, const OutputMemory& output,
                         const std::string& dtype, int device, uintptr_t stream,
                         const std::string& op, const std::string& name,
                         int communicator_id, double prescale,
                         double postscale) {
  Request request = MakeRequest(CollectiveKind::kReduceScatter, name,
                                communicator_id, dtype, {input});
  SetOutput(&request, output);
  request.reduce_op = ParseReduceOp(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return Submit(std::move(request), device, stream);
}

auto DeviceAlltoall(const DeviceTensor& input, const OutputMemory& output,
                    const std::string& dtype, int device, uintptr_t stream,
                    const std::optional<std::vector<int64_t>>& splits,
                    const std::string& name, int communicator_id) {
  Request request = MakeRequest(CollectiveKind::kAlltoall, name,
                                communicator_id, dtype, {input});
  SetOutput(&request, output);
  request.splits = splits.value_or(std::vector<int64_t>());
  return Submit(std::move(request), device, stream);
}

}  // namespace

void BindDevice(py::module_& module) {
  py::class_<SubmittedCall, std::shared_ptr<SubmittedCall>>(module,
                                                            "DeviceOperation")
      .def(
          "follow",
          [](SubmittedCall& self, uintptr_t stream) {
            Await([&] { return self.Follow(ToPointer(stream)); });
          },
          py::arg("stream"))
      .def("wait",
           [](SubmittedCall& self) { Await([&] { return self.Wait(); }); })
      .def("is_done", &SubmittedCall::IsDone)
      .def("output_shape", &SubmittedCall::output_shape)
      .def("received_splits", &SubmittedCall::received_splits);

  module.def("device_allreduce", &DeviceAllreduce, py::arg("inputs"),
             py::arg("outputs"), py::arg("dtype"), py::arg("device"),
             py::arg("stream"), py::arg("op") = "sum", py::arg("name") = "",
             py::arg("communicator_id") = 0, py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0, py::arg("weight") = 1.0,
             py::arg("wire_dtype") = py::none());
  module.def("device_broadcast", &DeviceBroadcast, py::arg("inputs"),
             py::arg("outputs"), py::arg("dtype"), py::arg("device"),
             py::arg("stream"), py::arg("root"), py::arg("name") = "",
             py::arg("communicator_id") = 0);
  module.def("device_allgather", &DeviceAllgather, py::arg("input"),
             py::arg("output"), py::arg("dtype"), py::arg("device"),
             py::arg("stream"), py::arg("name") = "",
             py::arg("communicator_id") = 0);
  module.def("device_reduce_scatter", &DeviceReduceScatter, py::arg("input"),
             py::arg("output"), py::arg("dtype"), py::arg("device"),
             py::arg("stream"), py::arg("op") = "sum", py::arg("name") = "",
             py::arg("communicator_id") = 0, py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0);
  module.def("device_alltoall", &DeviceAlltoall, py::arg("input"),
             py::arg("output"), py::arg("dtype"), py::arg("device"),
             py::arg("stream"), py::arg("splits") = py::none(),
             py::arg("name") = "", py::arg("communicator_id") = 0);
}

}  // namespace ring_keras
