// What XLA calls when a computation with our custom calls runs.
//
// The handlers need nothing of a framework but XLA's interface for foreign
// functions. in_tensorflow.cc tells TensorFlow's XLA of them, in_jax.cc JAX's.
#ifndef RING_KERAS_KERNELS_XLA_HANDLERS_H_
#define RING_KERAS_KERNELS_XLA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace ring_keras {

struct XlaHandler {
  const char* target;    // One of custom_calls.h.
  const char* platform;  // As XLA names it: "Host" or "CUDA".
  XLA_FFI_Handler* handler;
};

inline constexpr int kXlaHandlerCount = 12;
extern const XlaHandler kXlaHandlers[kXlaHandlerCount];

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_HANDLERS_H_
