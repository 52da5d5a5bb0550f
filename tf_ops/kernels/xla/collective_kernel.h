// What the ops' kernels for XLA have in common.
#ifndef RING_KERAS_KERNELS_XLA_COLLECTIVE_KERNEL_H_
#define RING_KERAS_KERNELS_XLA_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/xla/call_builder.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

inline constexpr char kXlaGpu[] = "XLA_GPU_JIT";

// An op that takes part in a collective.
class CollectiveXlaKernel : public tensorflow::XlaOpKernel {
 public:
  CollectiveXlaKernel(tensorflow::OpKernelConstruction* construction,
                      CollectiveKind kind)
      : XlaOpKernel(construction),
        prototype_(Attributes(construction).NewRequest(kind)) {}

 protected:
  // A call of `target` for this op, without tensors.
  CallBuilder NewCall(tensorflow::XlaOpKernelContext* context,
                      const char* target) const {
    CallBuilder call(context, target);
    call.Set(xla_calls::kKind, static_cast<int64_t>(prototype_.kind));
    call.Set(xla_calls::kName, prototype_.name);
    call.Set(xla_calls::kCommunicator, prototype_.communicator_id);
    call.Set(xla_calls::kStep, static_cast<int64_t>(prototype_.step_role));
    call.Set(xla_calls::kPlan, prototype_.plan);
    return call;
  }

  // The ranks that take part; reports an error and returns none if there are
  // none.
  std::vector<int> Ranks(tensorflow::XlaOpKernelContext* context) const {
    auto ranks = Runtime::Get().CommunicatorRanks(prototype_.communicator_id);
    if (ranks.ok()) return ranks.value();
    context->SetStatus(ToTensorFlow(ranks.status()));
    return {};
  }

  const Request& prototype() const { return prototype_; }

 private:
  const Request prototype_;
};

// A wire's type as an attribute; -1 of none.
inline int64_t NumberOf(const std::optional<DataType>& dtype) {
  return dtype.has_value() ? static_cast<int64_t>(*dtype) : -1;
}

// By hand, since REGISTER_XLA_OP comes too late once the process has compiled
// anything.
#define RING_KERAS_REGISTER_XLA(op, kernel)                        \
  REGISTER_KERNEL_BUILDER(Name(op).Device("XLA_CPU_JIT"), kernel); \
  REGISTER_KERNEL_BUILDER(Name(op).Device(kXlaGpu), kernel)

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_COLLECTIVE_KERNEL_H_
