#include "tf_ops/runtime/tensor_memory.h"

#include "tf_ops/transport/shm/tensor_arena.h"

namespace ring_keras {

std::optional<TensorMemory> SharedTensorMemory() {
  const TensorArena* arena = TensorArena::OfProcess();
  if (arena == nullptr) return std::nullopt;
  return TensorMemory{arena->data(), kTensorAreaBytes, PageBytes()};
}

}  // namespace ring_keras
