// torch's tensors as the engine sees them: dense memory and a type.
#ifndef RING_KERAS_TORCH_TENSORS_H_
#define RING_KERAS_TORCH_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/tensor_view.h"

namespace ring_keras::torch_backend {

// Throws, unless it is a dense tensor in host memory or on a GPU.
void CheckTensor(const at::Tensor& tensor);
// Throws, unless all are that, on one device and of one type.
void CheckTensors(const std::vector<at::Tensor>& tensors);

// Tensors as contiguous memory. Those that are not contiguous are copied, and
// back.
class Contiguous {
 public:
  // A tensor with the same values.
  at::Tensor Of(const at::Tensor& tensor);
  // Writes what has become of copies to where they are from.
  void CopyBack() const;
  // Whether there are no copies.
  bool empty() const { return copies_.empty(); }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

// By which ranks notice that one engine's type stands for two of torch's, such
// as a complex one: 0 for types that are the engine's own.
int64_t PlanOf(const at::Tensor& tensor);

// How values travel that are moved, but not computed with.
struct Moved {
  DataType dtype;
  // How many of these make one element of the tensor.
  int64_t per_element;
};
Moved MovedAs(const at::Tensor& tensor);

// How values are reduced: complex ones as pairs of real ones. Throws for types
// without arithmetic here.
DataType ReducedAs(const at::Tensor& tensor);

// `tensor`, or a view of a complex one as real numbers.
at::Tensor AsReal(const at::Tensor& tensor);

// The memory of a contiguous tensor as `shape` of what is moved.
TensorView ViewOf(const at::Tensor& tensor, Shape shape);

// All elements of `tensors`, one after the other.
at::Tensor Concatenated(const std::vector<at::Tensor>& tensors);
// The reverse: copies consecutive elements of `flat` into `tensors`.
void Distribute(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);
int64_t ElementsOf(const std::vector<at::Tensor>& tensors);
std::vector<int64_t> CountsOf(const std::vector<at::Tensor>& tensors);

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_TENSORS_H_
