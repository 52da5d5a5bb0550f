// TensorFlow's memory for tensors on the CPU, where the ranks of a host share
// theirs.
#ifndef RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_
#define RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_

#include <cstddef>
#include <optional>
#include <string>

#include "tensorflow/core/common_runtime/bfc_allocator.h"
#include "tensorflow/core/framework/allocator.h"
#include "tf_ops/transport/shm/tensor_arena.h"

namespace ring_keras {

// Large tensors come from an arena, by the allocator that TensorFlow has for
// large blocks on GPUs and, with oneDNN, on CPUs: it keeps what is freed for
// the next. The others, and those for which there is no room, come from where
// they always have.
class TensorAllocator final : public tensorflow::Allocator {
 public:
  // The arena outlives it.
  explicit TensorAllocator(const TensorArena& arena);

  std::string Name() override { return "ring_keras"; }
  void* AllocateRaw(size_t alignment, size_t nbytes) override;
  void* AllocateRaw(size_t alignment, size_t nbytes,
                    const tensorflow::AllocationAttributes& how) override;
  void DeallocateRaw(void* data) override;
  // Of the arena.
  std::optional<tensorflow::AllocatorStats> GetStats() override {
    return large_.GetStats();
  }
  bool ClearStats() override { return large_.ClearStats(); }

 private:
  const TensorArena& arena_;
  tensorflow::Allocator& others_;
  tensorflow::BFCAllocator large_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_
