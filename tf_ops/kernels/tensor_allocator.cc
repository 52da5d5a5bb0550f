#include "tf_ops/kernels/tensor_allocator.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

namespace ring_keras {
namespace {

// Below, the ranks copy anyway; a malloc() is faster, and leaves no holes.
constexpr size_t kLeastBytes = size_t{32} << 10;

// Gives an arena away, from its beginning to its end. Called under the
// allocator's lock.
class ArenaBlocks final : public tensorflow::SubAllocator {
 public:
  explicit ArenaBlocks(const TensorArena& arena)
      : tensorflow::SubAllocator({}, {}), arena_(arena) {}

  void* Alloc(size_t alignment, size_t nbytes, size_t* received) override {
    const size_t begin = (used_ + alignment - 1) / alignment * alignment;
    if (!TensorArena::IsWithin(begin, nbytes)) return nullptr;
    used_ = begin + nbytes;
    *received = nbytes;
    return arena_.data() + begin;
  }
  // Without garbage collection it is asked to only when it is destroyed.
  void Free(void*, size_t) override {}
  // Blocks follow one another.
  bool SupportsCoalescing() const override { return true; }

 private:
  const TensorArena& arena_;
  size_t used_ = 0;
};

// As much as the machine has: what is refused here is asked of the system.
size_t Limit() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return kTensorAreaBytes;
  return std::min(kTensorAreaBytes,
                  static_cast<size_t>(pages) * static_cast<size_t>(page));
}

tensorflow::BFCAllocator::Options WithoutWaiting() {
  tensorflow::BFCAllocator::Options options;
  options.allow_retry_on_failure = false;
  return options;
}

}  // namespace

TensorAllocator::TensorAllocator(const TensorArena& arena)
    : arena_(arena),
      others_(*tensorflow::cpu_allocator()),
      large_(std::make_unique<ArenaBlocks>(arena), Limit(), Name(),
             WithoutWaiting()) {}

void* TensorAllocator::AllocateRaw(size_t alignment, size_t nbytes) {
  return AllocateRaw(alignment, nbytes, tensorflow::AllocationAttributes());
}

void* TensorAllocator::AllocateRaw(
    size_t alignment, size_t nbytes,
    const tensorflow::AllocationAttributes& how) {
  if (nbytes >= kLeastBytes) {
    // With pages of its own, which can be taken away from peers.
    const size_t pages = (nbytes + kTensorPageBytes - 1) / kTensorPageBytes;
    void* data = large_.AllocateRaw(std::max(alignment, kTensorPageBytes),
                                    pages * kTensorPageBytes, how);
    if (data != nullptr) return data;
  }
  return others_.AllocateRaw(alignment, nbytes, how);
}

void TensorAllocator::DeallocateRaw(void* data) {
  if (arena_.Holds(data)) {
    large_.DeallocateRaw(data);
  } else {
    others_.DeallocateRaw(data);
  }
}

}  // namespace ring_keras
