#include "tf_ops/transport/shm/buffer_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace ring_keras {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

BufferAllocator::BufferAllocator(std::shared_ptr<Segment> own)
    : own_(std::move(own)), free_({{0, kBufferAreaBytes}}) {}

StatusOr<std::shared_ptr<void>> BufferAllocator::Allocate(size_t nbytes) {
  StatusOr<uint64_t> offset = Take(nbytes);
  RING_KERAS_RETURN_IF_ERROR(offset.status());
  return std::shared_ptr<void>(
      own_->buffers() + offset.value(),
      [self = shared_from_this(), taken = offset.value()](void*) {
        self->Free(taken);
      });
}

StatusOr<uint64_t> BufferAllocator::Take(size_t nbytes) {
  // Sums must not wrap: more than there is stays more than there is.
  const size_t wanted =
      (std::clamp<size_t>(nbytes, 1, kBufferAreaBytes + 1) + kPage - 1) /
      kPage * kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& gap : free_) {
    const auto [offset, size] = gap;  // A copy: the gap goes.
    if (size < wanted) continue;
    free_.erase(offset);
    if (size > wanted) free_[offset + wanted] = size - wanted;
    taken_[offset] = wanted;
    return offset;
  }
  return Status(StatusCode::kResourceExhausted,
                StrCat("no room for a shared buffer of ", nbytes, " bytes in ",
                       kBufferAreaBytes, ". Release buffers first."));
}

void BufferAllocator::Free(uint64_t offset) {
  if (!owner_.IsThis()) return;
  char* data = own_->buffers() + offset;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto taken = taken_.find(offset);
  const size_t size = taken->second;
  taken_.erase(taken);
  // A hole in the file: reads as zeros, and costs nothing.
  if (madvise(data, size, MADV_REMOVE) != 0) std::memset(data, 0, size);
  auto gap = free_.emplace(offset, size).first;
  const auto next = std::next(gap);
  if (next != free_.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    free_.erase(next);
  }
  if (gap != free_.begin()) {
    const auto previous = std::prev(gap);
    if (previous->first + previous->second == gap->first) {
      previous->second += gap->second;
      free_.erase(gap);
    }
  }
}

bool BufferAllocator::Find(const void* data, size_t nbytes,
                           uint64_t* offset) const {
  const char* at = static_cast<const char*>(data);
  const char* begin = own_->buffers();
  if (at < begin || at >= begin + kBufferAreaBytes) return false;
  *offset = at - begin;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto after = taken_.upper_bound(*offset);
  if (after == taken_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return *offset + nbytes <= start + size;
}

}  // namespace ring_keras
