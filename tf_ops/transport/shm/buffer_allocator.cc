#include "tf_ops/transport/shm/buffer_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "tf_ops/common/logging.h"

namespace ring_keras {

BufferAllocator::BufferAllocator(std::shared_ptr<Segment> own)
    : own_(std::move(own)),
      free_({{0, kBufferAreaBytes}}),
      child_copies_("shared buffers", own_->buffers(), kBufferAreaBytes,
                    [this] { return InUse(); }) {}

std::vector<UsedBlock> BufferAllocator::InUse() const {
  std::vector<UsedBlock> blocks;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [offset, buffer] : taken_) {
    blocks.push_back({own_->buffers() + offset, buffer.nbytes});
  }
  return blocks;
}

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
      WholePages(std::clamp<size_t>(nbytes, 1, kBufferAreaBytes + 1));
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& gap : free_) {
    const auto [offset, size] = gap;  // A copy: the gap goes.
    if (size < wanted) continue;
    free_.erase(offset);
    if (size > wanted) free_[offset + wanted] = size - wanted;
    taken_[offset] = Buffer{std::max<size_t>(nbytes, 1)};
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
  const size_t size = WholePages(taken->second.nbytes);
  const bool isolated = taken->second.isolated;
  taken_.erase(taken);
  if (isolated) {
    // Peers may still write to its place in the file: never used again.
    ReplaceByPrivate(data, size);
    return;
  }
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
  return FindIn(data, nbytes, offset).has_value();
}

bool BufferAllocator::FindAlone(const void* data, size_t nbytes,
                                uint64_t* offset) const {
  const std::optional<uint64_t> buffer_end = FindIn(data, nbytes, offset);
  if (!buffer_end.has_value() || *offset % PageBytes() != 0) return false;
  const uint64_t end = *offset + nbytes;
  return end % PageBytes() == 0 || end == *buffer_end;
}

std::optional<uint64_t> BufferAllocator::FindIn(const void* data, size_t nbytes,
                                                uint64_t* offset) const {
  const char* at = static_cast<const char*>(data);
  const char* begin = own_->buffers();
  if (at < begin || at >= begin + kBufferAreaBytes) return std::nullopt;
  *offset = at - begin;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto buffer = Holding(*offset, nbytes);
  if (buffer == taken_.end() || buffer->second.isolated) return std::nullopt;
  return buffer->first + buffer->second.nbytes;
}

void BufferAllocator::Isolate(uint64_t offset, size_t nbytes) {
  if (nbytes == 0) return;
  char* data = own_->buffers() + offset;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto buffer = Holding(offset, nbytes);
  if (buffer == taken_.end()) return;
  taken_.at(buffer->first).isolated = true;
  madvise(data, WholePages(nbytes), MADV_REMOVE);
  if (ReplaceByPrivate(data, WholePages(nbytes))) return;
  Log(LogLevel::kError,
      StrCat("cannot take a shared buffer of ", nbytes,
             " bytes away from the other ranks, which may still write to it: ",
             ErrnoMessage(errno), ". Do not use it any more."));
}

BufferAllocator::Buffers::const_iterator BufferAllocator::Holding(
    uint64_t offset, size_t nbytes) const {
  const auto after = taken_.upper_bound(offset);
  if (after == taken_.begin()) return taken_.end();
  const auto buffer = std::prev(after);
  const uint64_t end = buffer->first + WholePages(buffer->second.nbytes);
  return offset + nbytes <= end ? buffer : taken_.end();
}

}  // namespace ring_keras
