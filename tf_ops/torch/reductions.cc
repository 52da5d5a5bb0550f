#include "tf_ops/torch/reductions.h"

#include <ATen/ATen.h>

namespace ring_keras::torch_backend {

Reduction ReductionOf(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const bool is_bool = tensor.scalar_type() == at::kBool;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:  // Of bools torch adds up none: one is true, or
                               // none.
      return {is_bool ? ReduceOp::kMax : ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAverage};
    case c10d::ReduceOp::PRODUCT:
      return {is_bool ? ReduceOp::kMin : ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement =
          static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM has no factor");
      TORCH_CHECK_TYPE(
          !at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true),
          "[RK142] PREMUL_SUM is of floating-point numbers, got ",
          tensor.scalar_type());
      return {ReduceOp::kSum, supplement->tensor_factor.defined()
                                  ? supplement->tensor_factor.item<double>()
                                  : supplement->double_factor};
    }
    default:
      TORCH_CHECK_VALUE(
          false,
          "[RK142] the back end ring has this reduction in all_reduce "
          "and reduce alone: BAND, BOR or BXOR");
  }
}

void CheckReduction(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      !tensor.is_complex() || c10d::isComplexViewAsRealAllowed(op),
      "[RK142] complex tensors can be added up and averaged, and no other "
      "reduction is "
      "defined of them");
}

bool IsOfBits(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::BAND || op.op_ == c10d::ReduceOp::BOR ||
         op.op_ == c10d::ReduceOp::BXOR;
}

at::Tensor CombinedBits(const at::Tensor& first, const at::Tensor& second,
                        const c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::BAND) return at::bitwise_and(first, second);
  if (op.op_ == c10d::ReduceOp::BOR) return at::bitwise_or(first, second);
  return at::bitwise_xor(first, second);
}

}  // namespace ring_keras::torch_backend
