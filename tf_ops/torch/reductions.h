// c10d's reductions, as the engine knows them, and those that it has not.
#ifndef RING_KERAS_TORCH_REDUCTIONS_H_
#define RING_KERAS_TORCH_REDUCTIONS_H_

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tf_ops/common/reduce_op.h"

namespace ring_keras::torch_backend {

// `factor` is that of PREMUL_SUM.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
};

// The engine's. Throws where it has none.
Reduction ReductionOf(const c10d::ReduceOp& op, const at::Tensor& tensor);

// Throws if `op` is not defined of the tensor's type.
void CheckReduction(const c10d::ReduceOp& op, const at::Tensor& tensor);

// Whether it is one of those that the engine has not.
bool IsOfBits(const c10d::ReduceOp& op);

at::Tensor CombinedBits(const at::Tensor& first, const at::Tensor& second,
                        const c10d::ReduceOp& op);

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_REDUCTIONS_H_
