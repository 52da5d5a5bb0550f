#include "tf_ops/bindings/device_memory.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>

#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/cuda/runtime_api.h"
#include "tf_ops/cuda/stream.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

const cuda::RuntimeApi& Cuda() { return *ValueOrThrow(cuda::GetRuntime()); }

void Check(int error, const char* what) {
  ThrowIfError(cuda::ToStatus(error, what));
}

class DeviceBuffer {
 public:
  DeviceBuffer(int device, size_t nbytes) : device_(device), nbytes_(nbytes) {
    Check(Cuda().SetDevice(device), "making a device current");
    Check(Cuda().Malloc(&memory_, nbytes), "allocating memory on the GPU");
  }
  ~DeviceBuffer() { Cuda().Free(memory_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory_); }

  // Both return when the copy is done.
  void Write(const py::array& array) {
    Copy(memory_, array.data(), array, cuda::kMemcpyHostToDevice);
  }
  void Read(py::array array) {
    Copy(array.mutable_data(), memory_, array, cuda::kMemcpyDeviceToHost);
  }

 private:
  void Copy(void* to, const void* from, const py::array& array, int kind) {
    const auto nbytes = static_cast<size_t>(array.nbytes());
    if (nbytes > nbytes_ || (array.flags() & py::array::c_style) == 0) {
      throw py::value_error(StrCat("expected a C-contiguous array of at most ",
                                   nbytes_, " bytes, got one of ", nbytes,
                                   "."));
    }
    ThrowIfError(WithoutGil([&]() -> Status {
      auto stream = cuda::Stream::Create(device_);
      RING_KERAS_RETURN_IF_ERROR(stream.status());
      RING_KERAS_RETURN_IF_ERROR(cuda::ToStatus(
          Cuda().MemcpyAsync(to, from, nbytes, kind, stream.value()->handle()),
          "copying to or from the GPU"));
      return stream.value()->Synchronize();
    }));
  }

  const int device_;
  const size_t nbytes_;
  void* memory_ = nullptr;
};

}  // namespace

void BindDeviceMemory(py::module_& module) {
  module.def("device_count", [] {
    int count = 0;
    Check(Cuda().GetDeviceCount(&count), "counting the GPUs");
    return count;
  });
  py::class_<DeviceBuffer>(module, "DeviceBuffer")
      .def(py::init<int, size_t>(), py::arg("device"), py::arg("nbytes"))
      .def_property_readonly("address", &DeviceBuffer::address)
      .def("write", &DeviceBuffer::Write, py::arg("array"))
      .def("read", &DeviceBuffer::Read, py::arg("array"));
  py::class_<cuda::Stream>(module, "DeviceStream")
      .def(py::init([](int device) {
             return ValueOrThrow(cuda::Stream::Create(device));
           }),
           py::arg("device"))
      .def_property_readonly(
          "handle",
          [](const cuda::Stream& stream) {
            return reinterpret_cast<uintptr_t>(stream.handle());
          })
      .def("synchronize", [](cuda::Stream& stream) {
        ThrowIfError(WithoutGil([&] { return stream.Synchronize(); }));
      });
}

}  // namespace ring_keras
