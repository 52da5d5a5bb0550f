#include "tf_ops/kernels/tensor_allocator.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tf_ops/common/tensor_view.h"

namespace ring_keras {
namespace {

// Gives memory away, from its beginning to its end. Called under the
// allocator's lock.
class Blocks final : public tensorflow::SubAllocator {
 public:
  explicit Blocks(const TensorMemory& memory)
      : tensorflow::SubAllocator({}, {}), memory_(memory) {}

  void* Alloc(size_t alignment, size_t nbytes, size_t* received) override {
    const size_t least = std::max(alignment, memory_.page_nbytes);
    const size_t begin = (used_ + least - 1) / least * least;
    if (begin > memory_.nbytes || nbytes > memory_.nbytes - begin) {
      return nullptr;
    }
    used_ = begin + nbytes;
    *received = nbytes;
    return memory_.data + begin;
  }
  // Without garbage collection it is asked to only when it is destroyed.
  void Free(void*, size_t) override {}
  // Blocks follow one another.
  bool SupportsCoalescing() const override { return true; }

 private:
  const TensorMemory memory_;
  size_t used_ = 0;
};

// As much as the machine has: what is refused here is asked of the system.
size_t LimitOf(const TensorMemory& memory) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return memory.nbytes;
  return std::min(memory.nbytes,
                  static_cast<size_t>(pages) * static_cast<size_t>(page));
}

tensorflow::BFCAllocator::Options WithoutWaiting() {
  tensorflow::BFCAllocator::Options options;
  options.allow_retry_on_failure = false;
  return options;
}

}  // namespace

TensorAllocator::TensorAllocator(const TensorMemory& shared)
    : shared_(shared),
      others_(*tensorflow::cpu_allocator()),
      large_(std::make_unique<Blocks>(shared), LimitOf(shared), Name(),
             WithoutWaiting()) {}

void* TensorAllocator::AllocateRaw(size_t alignment, size_t nbytes) {
  return AllocateRaw(alignment, nbytes, tensorflow::AllocationAttributes());
}

void* TensorAllocator::AllocateRaw(
    size_t alignment, size_t nbytes,
    const tensorflow::AllocationAttributes& how) {
  // A malloc() is faster for small ones, and leaves no holes.
  if (nbytes >= kLeastSharedTensorBytes && owner_.IsThis()) {
    // With pages of its own, which can be taken away from peers.
    const size_t page = shared_.page_nbytes;
    const size_t size = (nbytes + page - 1) / page * page;
    void* data = large_.AllocateRaw(std::max(alignment, page), size, how);
    if (data != nullptr) {
      NoteTensorTaken(data, size);
      return data;
    }
  }
  return others_.AllocateRaw(alignment, nbytes, how);
}

void TensorAllocator::DeallocateRaw(void* data) {
  if (shared_.Holds(data)) {
    if (!owner_.IsThis()) return;
    NoteTensorReturned(data);
    large_.DeallocateRaw(data);
  } else {
    others_.DeallocateRaw(data);
  }
}

}  // namespace ring_keras
