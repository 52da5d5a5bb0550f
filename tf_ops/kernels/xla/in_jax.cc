// The handlers in JAX, which tests drive them through: its XLA is the same, and
// there it needs no TensorFlow to reach a GPU. No library that users get has
// this file; tests/support/jax_calls.py compiles it with those that it needs.
#include <cstdint>
#include <string_view>

#include "tf_ops/common/export.h"
#include "tf_ops/kernels/xla/call_trace.h"
#include "tf_ops/kernels/xla/handlers.h"
#include "tf_ops/kernels/xla/started_calls.h"

namespace ring_keras {

CallTrace::CallTrace(const char*, const Request*) {}
CallTrace::~CallTrace() = default;

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

// What the kernel of a wait says when it is compiled.
RING_KERAS_EXPORT void RingKerasXlaSetHasWait(int64_t number) {
  ring_keras::StartedCalls::Get().SetHasWait(number);
}
}
