// torch's operations on tensors of device "cuda", computed by those of CPUs.
//
// What writes to its arguments is queued in the current stream, and so are
// copies; what has a new result waits for the stream first.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

#include "tests/stand_in/device/memory.h"
#include "tests/stand_in/torch/places.h"

namespace ring_keras::stand_in {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);
constexpr char kUser[] = "an operation of torch's";

std::shared_ptr<Stream> Current(const at::Tensor& tensor) {
  return StreamOf(CurrentStream(tensor.get_device()));
}

size_t NbytesOf(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                          tensor.element_size());
}

// The same memory as a tensor of the CPU's; others as they are.
at::Tensor Hosted(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(),
                       tensor.strides(), tensor.options().device(at::kCPU));
}

void Check(const at::Tensor& hosted) {
  if (hosted.numel() > 0) {
    CheckAccess(hosted.const_data_ptr(), NbytesOf(hosted), kUser);
  }
}

at::Tensor Empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pin*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &DeviceAllocator(), kKeys,
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef strides,
                        std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> /*layout*/,
                        std::optional<at::Device> device,
                        std::optional<bool> /*pin*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, strides, &DeviceAllocator(),
                                           kKeys, dtype.value_or(at::kFloat));
}

at::Tensor& Copy(at::Tensor& self, const at::Tensor& source,
                 bool /*non_blocking*/) {
  const auto stream = Current(self.is_cuda() ? self : source);
  // The host may write to its own as soon as this returns.
  const at::Tensor from = source.is_cuda() ? Hosted(source) : source.clone();
  at::Tensor to = Hosted(self);
  const bool to_device = self.is_cuda();
  stream->Enqueue([to, from, to_device, from_device = source.is_cuda()] {
    if (to_device) Check(to);
    if (from_device) Check(from);
    to.detach().copy_(from.detach());
  });
  if (!to_device) stream->Mark()->Wait();
  return self;
}

// Anything else.
void OnHost(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - count, stack->end());
  stack->resize(stack->size() - count);
  std::vector<at::Tensor> touched;
  const auto hosted = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cuda()) touched.push_back(tensor);
    return Hosted(tensor);
  };
  torch::jit::Stack arguments;
  std::vector<c10::IValue> written;
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = given[i];
    const auto* const alias = schema.arguments()[i].alias_info();
    TORCH_CHECK(alias == nullptr || alias->isWrite(), schema.name(),
                ": a view that the stand-in has not");
    if (alias != nullptr) written.push_back(value);
    if (value.isTensor()) {
      arguments.emplace_back(hosted(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) {
        list.push_back(hosted(one));
      }
      arguments.emplace_back(list);
    } else if (value.isDevice()) {
      arguments.emplace_back(c10::Device(at::kCPU));
    } else {
      arguments.push_back(value);
    }
  }
  TORCH_CHECK(!touched.empty(), schema.name(), ": no tensor on the stand-in");
  const auto stream = Current(touched[0]);
  const auto compute = [operation, arguments] {
    const at::AutoDispatchBelowADInplaceOrView below;
    torch::jit::Stack values = arguments;
    operation.callBoxed(&values);
    return values;
  };
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& tensor : touched) aliases.push_back(Hosted(tensor));
  if (!written.empty()) {
    stream->Enqueue([compute, aliases] {
      for (const at::Tensor& alias : aliases) Check(alias);
      compute();
    });
    stack->insert(stack->end(), written.begin(),
                  written.begin() + schema.returns().size());
    return;
  }
  stream->Mark()->Wait();
  for (const at::Tensor& alias : aliases) Check(alias);
  for (const c10::IValue& result : compute()) {
    if (!result.isTensor()) {
      stack->push_back(result);
      continue;
    }
    at::Tensor moved =
        at::empty(result.toTensor().sizes(),
                  result.toTensor().options().device(touched[0].device()));
    moved.copy_(result.toTensor());
    stack->emplace_back(moved);
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &Empty);
  library.impl("empty_strided", &EmptyStrided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("copy_", &Copy);
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&OnHost>());
}

// What tests ask for beside.
TORCH_LIBRARY(ring_keras_stand_in, library) {
  // Handles of streams for Control.hold: the device's current one, and those
  // of torch's pool.
  library.def("current_stream(int device) -> int", [](int64_t device) {
    return static_cast<int64_t>(CurrentStream(static_cast<int>(device)).id());
  });
  library.def("pool_streams(int device) -> int[]", [](int64_t device) {
    std::vector<int64_t> handles;
    for (const c10::Stream& stream : PoolStreams(static_cast<int>(device))) {
      handles.push_back(stream.id());
    }
    return handles;
  });
  // Makes a new stream the thread's current one.
  library.def("use_new_stream(int device) -> ()", [](int64_t device) {
    const auto& guard = *c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
    guard.exchangeStream(guard.getNewStream(
        {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}, 0));
  });
  library.def("set_captures(bool value) -> ()", &SetCaptures);
  library.def("current_device() -> int",
              [] { return static_cast<int64_t>(CurrentDevice()); });
}

}  // namespace
}  // namespace ring_keras::stand_in
