#include "tf_ops/transport/shm/window.h"

#include <new>

namespace ring_keras {
namespace {

constexpr size_t kUnit = 4096;

int SizeClass(size_t nbytes) {
  int size_class = 12;  // One unit.
  while ((size_t{1} << size_class) < nbytes) ++size_class;
  return size_class;
}

}  // namespace

void Window::Reset() {
  for (WindowPost& post : posts) post.use.store(0, std::memory_order_relaxed);
  packed.store(0, std::memory_order_relaxed);
  reduced.store(0, std::memory_order_relaxed);
  unpacked.store(0, std::memory_order_relaxed);
  readers_done.store(0, std::memory_order_relaxed);
}

StatusOr<Window*> WindowAllocator::Allocate(size_t data_nbytes) {
  Reclaim();
  const int size_class = SizeClass(sizeof(Window) + data_nbytes);
  Window* window = nullptr;
  if (size_class < kSizeClasses && !free_[size_class].empty()) {
    window = free_[size_class].back();
    free_[size_class].pop_back();
  } else {
    const size_t nbytes = size_t{1} << size_class;
    if (size_class >= kSizeClasses ||
        next_offset_ + nbytes > kWindowAreaBytes) {
      return Status(StatusCode::kResourceExhausted,
                    StrCat("no room for a shared-memory window of ", nbytes,
                           " bytes: ", next_offset_, " of ", kWindowAreaBytes,
                           " are in use. Wait for collectives under way "
                           "before starting more."));
    }
    window = reinterpret_cast<Window*>(own_->windows() + next_offset_);
    class_of_.resize((next_offset_ + nbytes) / kUnit, 0);
    class_of_[next_offset_ / kUnit] = size_class;
    next_offset_ += nbytes;
  }
  (new (window) Window)->Reset();
  return window;
}

uint64_t WindowAllocator::OffsetOf(const Window* window) const {
  return reinterpret_cast<const char*>(window) - own_->windows();
}

void WindowAllocator::Release(Window* window, uint32_t reader_count) {
  pending_.push_back(
      {window, reader_count, class_of_[OffsetOf(window) / kUnit]});
}

void WindowAllocator::Reclaim() {
  size_t kept = 0;
  for (const Pending& pending : pending_) {
    if (pending.window->readers_done.load(std::memory_order_acquire) >=
        pending.reader_count) {
      free_[pending.size_class].push_back(pending.window);
    } else {
      pending_[kept++] = pending;
    }
  }
  pending_.resize(kept);
}

Window* WindowAt(Segment& segment, uint64_t offset) {
  if (offset % kUnit != 0 || offset > kWindowAreaBytes - kUnit) return nullptr;
  return reinterpret_cast<Window*>(segment.windows() + offset);
}

}  // namespace ring_keras
