// Tensors in the memory that a host's ranks share.
#include <ATen/ATen.h>

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/backend.h"

namespace ring_keras::torch_backend {

// Host memory has no number.
bool RingBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0;
}

at::Tensor RingBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(
      options.device().is_cpu(),
      "[RK141] the back end ring has host memory alone, and was asked for some "
      "on ",
      options.device());
  StatusOr<std::shared_ptr<void>> memory =
      Runtime::Get().AllocateBuffer(size * options.dtype().itemsize());
  // Buckets may lie anywhere, where they are copied.
  if (memory.status().code() == StatusCode::kResourceExhausted) {
    return at::empty({size}, options);
  }
  TORCH_CHECK_WITH(DistBackendError, memory.ok(),
                   memory.status().CodedMessage());
  void* const first = memory.value().get();
  return at::from_blob(
      first, {size}, [kept = std::move(memory.value())](void*) {}, options);
}

}  // namespace ring_keras::torch_backend
