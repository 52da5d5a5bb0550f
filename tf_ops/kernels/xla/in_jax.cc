// The handlers in JAX, whose XLA is the same: ring_keras/jax/library.py tells
// it of them. Tests drive them on GPUs by this, too, without TensorFlow.
#include <cstdint>
#include <string_view>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/common/data_type.h"
#include "tf_ops/common/export.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/kernels/xla/call_trace.h"
#include "tf_ops/kernels/xla/handlers.h"
#include "tf_ops/kernels/xla/started_calls.h"

namespace ring_keras {

CallTrace::CallTrace(const char*, const Request*) {}
CallTrace::~CallTrace() = default;

namespace {

// The number of the value of `Enum`, of `count`, that has this name; -1: none
// has.
template <typename Enum>
int64_t NumberOf(const char* name, int count) {
  for (int i = 0; i < count; ++i) {
    if (std::string_view(NameOf(static_cast<Enum>(i))) == name) return i;
  }
  return -1;
}

}  // namespace
}  // namespace ring_keras

extern "C" {

// Null if there is none.
RING_KERAS_EXPORT XLA_FFI_Handler* RingKerasXlaHandler(const char* target,
                                                       const char* platform) {
  for (const ring_keras::XlaHandler& known : ring_keras::kXlaHandlers) {
    if (std::string_view(known.target) == target &&
        std::string_view(known.platform) == platform) {
      return known.handler;
    }
  }
  return nullptr;
}

// What calls say by numbers in their attributes: "kind", "reduce_op" or
// "dtype".
RING_KERAS_EXPORT int64_t RingKerasXlaNumber(const char* what,
                                             const char* name) {
  using ring_keras::NumberOf;
  const std::string_view asked(what);
  if (asked == "kind") {
    return NumberOf<ring_keras::CollectiveKind>(
        name, ring_keras::kCollectiveKindCount);
  }
  if (asked == "reduce_op") {
    return NumberOf<ring_keras::ReduceOp>(name, ring_keras::kReduceOpCount);
  }
  return NumberOf<ring_keras::DataType>(name, ring_keras::kDataTypeCount);
}

// What the kernel of a wait says when it is compiled.
RING_KERAS_EXPORT void RingKerasXlaSetHasWait(int64_t number) {
  ring_keras::StartedCalls::Get().SetHasWait(number);
}
}
