#include "tf_ops/bindings/arrays.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tf_ops/bindings/numpy_types.h"

namespace py = pybind11;

namespace ring_keras {
namespace {

std::string Said(const py::array& array) {
  return StrCat("shape ",
                DebugString(Shape(array.shape(), array.shape() + array.ndim())),
                " and dtype ", std::string(py::str(array.dtype())));
}

}  // namespace

bool IsContiguous(const py::array& array) {
  return (array.flags() & py::array::c_style) != 0;
}

py::array Contiguous(const py::array& array) {
  if (IsContiguous(array)) return array;
  py::array contiguous = py::array::ensure(array, py::array::c_style);
  if (!contiguous) throw py::error_already_set();
  return contiguous;
}

py::array CheckedOutput(const py::array& out, const py::array& input) {
  const bool fits =
      out.dtype().equal(input.dtype()) && out.ndim() == input.ndim() &&
      std::equal(out.shape(), out.shape() + out.ndim(), input.shape()) &&
      IsContiguous(out) && out.writeable();
  if (!fits) {
    throw py::value_error(
        StrCat("out must be a writeable, C-contiguous array of ", Said(input),
               ". Received: ", Said(out), out.writeable() ? "" : ", read-only",
               IsContiguous(out) ? "" : ", not C-contiguous"));
  }
  return out;
}

py::array NewLike(const py::array& array) {
  return py::array(
      array.dtype(),
      std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
}

void AddInput(Request& request, const py::array& array) {
  request.dtype = DataTypeOf(array.dtype());
  request.inputs.push_back(
      {array.data(), Shape(array.shape(), array.shape() + array.ndim())});
}

OutputAllocator ArrayOutput::Allocator() {
  return [this](const Shape& shape) -> StatusOr<void*> {
    const size_t nbytes = ElementCount(shape) * itemsize_;
    memory_.reset(std::malloc(std::max<size_t>(nbytes, 1)));
    if (memory_ == nullptr) {
      return Status(
          StatusCode::kResourceExhausted,
          StrCat("no memory for an output of shape ", DebugString(shape)));
    }
    shape_ = shape;
    return memory_.get();
  };
}

py::array ArrayOutput::Take(const py::dtype& dtype) {
  void* const data = memory_.get();
  py::capsule owner(data, &std::free);
  (void)memory_.release();
  return py::array(dtype,
                   std::vector<py::ssize_t>(shape_.begin(), shape_.end()), data,
                   owner);
}

}  // namespace ring_keras
