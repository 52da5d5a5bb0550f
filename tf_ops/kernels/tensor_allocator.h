// TensorFlow's memory for tensors on the CPU, where the ranks of a host share
// theirs.
#ifndef RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_
#define RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_

#include <cstddef>
#include <optional>
#include <string>

#include "tensorflow/core/common_runtime/bfc_allocator.h"
#include "tensorflow/core/framework/allocator.h"
#include "tf_ops/common/fork.h"
#include "tf_ops/runtime/tensor_memory.h"

namespace ring_keras {

// Large tensors come from shared memory, by the allocator that TensorFlow has
// for large blocks on GPUs and, with oneDNN, on CPUs: it keeps what is freed
// for the next. The others, and those for which there is no room, come from
// where they always have.
class TensorAllocator final : public tensorflow::Allocator {
 public:
  explicit TensorAllocator(const TensorMemory& shared);

  std::string Name() override { return "ring_keras"; }
  void* AllocateRaw(size_t alignment, size_t nbytes) override;
  void* AllocateRaw(size_t alignment, size_t nbytes,
                    const tensorflow::AllocationAttributes& how) override;
  void DeallocateRaw(void* data) override;
  // Of the shared memory.
  std::optional<tensorflow::AllocatorStats> GetStats() override {
    return large_.GetStats();
  }
  bool ClearStats() override { return large_.ClearStats(); }

 private:
  const TensorMemory shared_;
  // A forked child has copies of the tensors alone, and gives nothing back.
  const OwnerProcess owner_;
  tensorflow::Allocator& others_;
  tensorflow::BFCAllocator large_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_TENSOR_ALLOCATOR_H_
