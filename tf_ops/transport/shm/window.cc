#include "tf_ops/transport/shm/window.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace ring_keras {
namespace {

constexpr size_t kUnit = 4096;

}  // namespace

void Window::Reset() {
  for (WindowPost& post : posts) post.use.store(0, std::memory_order_relaxed);
  packed.store(0, std::memory_order_relaxed);
  reduced.store(0, std::memory_order_relaxed);
  withdrawn.store(false, std::memory_order_relaxed);
  unpacked.store(0, std::memory_order_relaxed);
  readers_done.store(0, std::memory_order_relaxed);
}

StatusOr<Window*> WindowAllocator::Allocate(size_t data_nbytes) {
  Reclaim();
  const size_t nbytes =
      (sizeof(Window) + data_nbytes + kUnit - 1) / kUnit * kUnit;
  // The lowest gap, whose pages are most likely there already.
  const auto gap = std::find_if(
      gaps_.begin(), gaps_.end(),
      [nbytes](const auto& each) { return each.second >= nbytes; });
  if (gap == gaps_.end()) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("no room for a shared-memory window of ", nbytes,
               " bytes among ", taken_.size(), " others in ", kWindowAreaBytes,
               ". Wait for collectives under way "
               "before starting more."));
  }
  const auto [offset, size] = *gap;
  gaps_.erase(gap);
  if (size > nbytes) gaps_[offset + nbytes] = size - nbytes;
  taken_[offset] = nbytes;
  auto* window = reinterpret_cast<Window*>(own_->windows() + offset);
  (new (window) Window)->Reset();
  return window;
}

uint64_t WindowAllocator::OffsetOf(const Window* window) const {
  return reinterpret_cast<const char*>(window) - own_->windows();
}

void WindowAllocator::Release(Window* window, uint32_t reader_count) {
  pending_.push_back({window, reader_count});
}

void WindowAllocator::Reclaim() {
  size_t kept = 0;
  for (const Pending& pending : pending_) {
    if (pending.window->readers_done.load(std::memory_order_acquire) >=
        pending.reader_count) {
      Free(pending.window);
    } else {
      pending_[kept++] = pending;
    }
  }
  pending_.resize(kept);
}

void WindowAllocator::Free(const Window* window) {
  const auto taken = taken_.find(OffsetOf(window));
  const auto gap = gaps_.emplace(taken->first, taken->second).first;
  taken_.erase(taken);
  const auto next = std::next(gap);
  if (next != gaps_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap == gaps_.begin()) return;
  const auto previous = std::prev(gap);
  if (previous->first + previous->second == gap->first) {
    previous->second += gap->second;
    gaps_.erase(gap);
  }
}

Window* WindowAt(Segment& segment, uint64_t offset) {
  if (offset % kUnit != 0 || offset > kWindowAreaBytes - kUnit) return nullptr;
  return reinterpret_cast<Window*>(segment.windows() + offset);
}

}  // namespace ring_keras
