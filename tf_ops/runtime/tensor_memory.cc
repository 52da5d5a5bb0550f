#include "tf_ops/runtime/tensor_memory.h"

#include "tf_ops/transport/shm/tensor_arena.h"

namespace ring_keras {

std::optional<TensorMemory> SharedTensorMemory() {
  const TensorArena* arena = TensorArena::OfProcess();
  if (arena == nullptr) return std::nullopt;
  return TensorMemory{arena->data(), kTensorAreaBytes, PageBytes()};
}

bool IsInSharedTensorMemory(const void* data, size_t nbytes) {
  const TensorArena* arena = TensorArena::OfProcess();
  return arena != nullptr && arena->OffsetOf(data, nbytes).has_value();
}

void NoteTensorTaken(void* data, size_t nbytes) {
  TensorArena::OfProcess()->NoteTaken(data, nbytes);
}

void NoteTensorReturned(void* data) {
  TensorArena::OfProcess()->NoteReturned(data);
}

}  // namespace ring_keras
