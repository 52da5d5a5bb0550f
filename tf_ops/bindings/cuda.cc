#include "tf_ops/bindings/cuda.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <span>
#include <string>

#include "tf_ops/bindings/errors.h"
#include "tf_ops/bindings/gil.h"
#include "tf_ops/bindings/numpy_types.h"
#include "tf_ops/cuda/device_code.h"
#include "tf_ops/cuda/library_paths.h"
#include "tf_ops/cuda/pack.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// A row for each segment: address to read, address to write, count.
using SegmentRows = py::array_t<uint64_t, py::array::c_style>;

static_assert(sizeof(cuda::Segment) == 3 * sizeof(uint64_t));

template <typename T>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

py::bytes Compile(const std::string& architecture) {
  return ValueOrThrow([&] {
    GilRelease release;  // Takes a second.
    return cuda::CompileDeviceCode(architecture);
  }());
}

void PrepareDevice(int device) {
  ThrowIfError([&] {
    GilRelease release;  // Compiles.
    return cuda::PrepareDevice(device);
  }());
}

void CopyScaled(int device, uint64_t stream, const std::string& from_dtype,
                const std::string& to_dtype, double scale,
                const SegmentRows& segments) {
  if (segments.ndim() != 2 || segments.shape(1) != 3) {
    throw py::value_error(
        "expected segments as rows of 3: address to read, address to write, "
        "count.");
  }
  const auto* rows = reinterpret_cast<const cuda::Segment*>(segments.data());
  ThrowIfError(cuda::CopyScaled(
      device, At<void>(stream), ParseDataType(from_dtype),
      ParseDataType(to_dtype), scale,
      std::span(rows, static_cast<size_t>(segments.shape(0)))));
}

void SumPieces(int device, uint64_t stream, const std::string& dtype,
               uint64_t pieces, int piece_count, uint64_t count, double scale,
               uint64_t sum) {
  ThrowIfError(cuda::SumPieces(device, At<void>(stream), ParseDataType(dtype),
                               At<const void>(pieces), piece_count, count,
                               scale, At<void>(sum)));
}

}  // namespace

void BindCuda(py::module_& module) {
  const py::object paths = py::module_::import("sysconfig").attr("get_paths")();
  cuda::SetPackageFolder(paths["platlib"].cast<std::string>());

  module.def("set_cuda_library_path", &cuda::SetLibraryPath,
             py::arg("directories"));
  module.def("compile_device_code", &Compile, py::arg("architecture"));
  module.def(
      "device_architecture",
      [](int capability) {
        return ValueOrThrow(cuda::ArchitectureFor(capability));
      },
      py::arg("capability"));
  module.def("prepare_device", &PrepareDevice, py::arg("device"));
  module.def("copy_scaled", &CopyScaled, py::arg("device"), py::arg("stream"),
             py::arg("from_dtype"), py::arg("to_dtype"), py::arg("scale"),
             py::arg("segments"));
  module.def("sum_pieces", &SumPieces, py::arg("device"), py::arg("stream"),
             py::arg("dtype"), py::arg("pieces"), py::arg("piece_count"),
             py::arg("count"), py::arg("scale"), py::arg("sum"));
}

}  // namespace ring_keras
