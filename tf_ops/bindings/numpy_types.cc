#include "tf_ops/bindings/numpy_types.h"

#include <optional>

#include "tf_ops/common/status.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

// NumPy's own types by number, without its way through Python.
std::optional<DataType> BuiltInType(const py::dtype& dtype) {
  using Numpy = py::detail::npy_api;
  if (dtype.byteorder() != '=' && dtype.byteorder() != '|') return std::nullopt;
  switch (dtype.num()) {
    case Numpy::NPY_FLOAT_:
      return DataType::kFloat32;
    case Numpy::NPY_DOUBLE_:
      return DataType::kFloat64;
    case Numpy::NPY_INT32_:
      return DataType::kInt32;
    case Numpy::NPY_INT64_:
      return DataType::kInt64;
    default:
      return std::nullopt;
  }
}

}  // namespace

DataType DataTypeOf(const py::dtype& dtype) {
  if (const auto built_in = BuiltInType(dtype)) return *built_in;
  const auto name = py::cast<std::string>(dtype.attr("name"));
  if (!py::cast<bool>(dtype.attr("isnative"))) {
    throw py::value_error(StrCat("expected ", name,
                                 " in this machine's byte order. Convert it "
                                 "with array.astype(array.dtype.newbyteorder"
                                 "('='))."));
  }
  return ParseDataType(name);
}

DataType ParseDataType(const std::string& name) {
  if (const auto dtype = DataTypeNamed(name)) return *dtype;
  std::string known = NameOf(static_cast<DataType>(0));
  for (int i = 1; i < kDataTypeCount; ++i) {
    known += StrCat(", ", NameOf(static_cast<DataType>(i)));
  }
  throw py::value_error(
      StrCat("expected a dtype of ", known, ", got ", name, "."));
}

ReduceOp ParseReduceOp(const std::string& name) {
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto candidate = static_cast<ReduceOp>(i);
    if (name == NameOf(candidate)) return candidate;
  }
  throw py::value_error(StrCat(
      "expected an op of sum, average, min, max, product, got '", name, "'."));
}

}  // namespace ring_keras
