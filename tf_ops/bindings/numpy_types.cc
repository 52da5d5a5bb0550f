#include "tf_ops/bindings/numpy_types.h"

#include "tf_ops/common/status.h"

namespace py = pybind11;

namespace ring_keras {

DataType DataTypeOf(const py::dtype& dtype) {
  const auto name = py::cast<std::string>(dtype.attr("name"));
  if (!py::cast<bool>(dtype.attr("isnative"))) {
    throw py::value_error(StrCat("expected ", name,
                                 " in this machine's byte order. Convert it "
                                 "with array.astype(array.dtype.newbyteorder"
                                 "('='))."));
  }
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto candidate = static_cast<DataType>(i);
    if (name == NameOf(candidate)) return candidate;
  }
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
