#include "tf_ops/torch/tensors.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <numeric>
#include <optional>

namespace ring_keras::torch_backend {
namespace {

std::optional<DataType> DataTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DataType::kUint8;
    case at::kChar:
      return DataType::kInt8;
    case at::kUInt16:
      return DataType::kUint16;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBool:
      return DataType::kBool;
    default:
      return std::nullopt;
  }
}

// NCCL knows no bools.
bool IsReducedAsBytes(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.scalar_type() == at::kBool;
}

}  // namespace

void CheckTensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kStrided &&
          (tensor.device().is_cpu() || tensor.device().is_cuda()),
      "[RK141] the back end ring takes dense tensors in host memory or on "
      "NVIDIA GPUs, got a tensor of layout ",
      tensor.layout(), " on ", tensor.device(),
      ". For others give their devices a back end of their own, as in "
      "init_process_group(\"cpu:ring,xpu:xccl\").");
}

void CheckTensors(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "expected a tensor at least, got none");
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(tensor);
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(),
                      "expected tensors on one device, got ",
                      tensors[0].device(), " and ", tensor.device());
    TORCH_CHECK_TYPE(tensor.scalar_type() == tensors[0].scalar_type(),
                     "expected tensors of one type, got ",
                     tensors[0].scalar_type(), " and ", tensor.scalar_type());
  }
}

at::Tensor Contiguous::Of(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  TORCH_CHECK_VALUE(
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      "expected a tensor whose elements are apart in memory, because the "
      "result is written there; got one that expand() has made");
  at::Tensor copy = tensor.contiguous();
  copies_.emplace_back(tensor, copy);
  return copy;
}

void Contiguous::CopyBack() const {
  for (const auto& [original, copy] : copies_) original.copy_(copy);
}

int64_t PlanOf(const at::Tensor& tensor) {
  if (DataTypeOf(tensor.scalar_type()) && !IsReducedAsBytes(tensor)) return 0;
  return 1 + static_cast<int64_t>(tensor.scalar_type());
}

Moved MovedAs(const at::Tensor& tensor) {
  const auto dtype = DataTypeOf(tensor.scalar_type());
  if (dtype) return {*dtype, 1};
  return {DataType::kUint8, static_cast<int64_t>(tensor.element_size())};
}

DataType ReducedAs(const at::Tensor& tensor) {
  if (IsReducedAsBytes(tensor)) return DataType::kUint8;
  const auto dtype = DataTypeOf(AsReal(tensor).scalar_type());
  TORCH_CHECK_TYPE(dtype.has_value(),
                   "[RK142] the back end ring reduces no tensors of ",
                   tensor.scalar_type());
  return *dtype;
}

at::Tensor AsReal(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

TensorView ViewOf(const at::Tensor& tensor, Shape shape) {
  // torch makes others of them before it calls a back end, but not if that is
  // called by its own methods.
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(),
                    "[RK141] the back end ring takes tensors whose memory has "
                    "their values, got one that is conjugate or negative only "
                    "by a mark. Give it tensor.resolve_conj().resolve_neg().");
  return {tensor.const_data_ptr(), std::move(shape)};
}

std::vector<int64_t> CountsOf(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

int64_t ElementsOf(const std::vector<at::Tensor>& tensors) {
  const std::vector<int64_t> counts = CountsOf(tensors);
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

at::Tensor Concatenated(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape(-1));
  return at::cat(flat);
}

void Distribute(const at::Tensor& flat,
                const std::vector<at::Tensor>& tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace ring_keras::torch_backend
