#include "tf_ops/transport/shm/segment.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace ring_keras {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
static_assert(sizeof(SegmentHeader) <= kHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "atomics in shared memory must not hide a lock");

size_t WindowsOffset(int size) {
  const size_t end = kHeaderBytes + size * sizeof(InboxRing);
  return (end + kHugePage - 1) / kHugePage * kHugePage;
}

size_t SegmentBytes(int size) {
  return WindowsOffset(size) + kWindowAreaBytes + kBufferAreaBytes;
}

}  // namespace

Segment::Segment(FileDescriptor descriptor, int size, char* base, size_t nbytes)
    : descriptor_(std::move(descriptor)),
      base_(base),
      nbytes_(nbytes),
      windows_offset_(WindowsOffset(size)) {}

Segment::~Segment() {
  // In a forked child other things may be where the segment was.
  if (owner_.IsThis()) munmap(base_, nbytes_);
}

StatusOr<std::unique_ptr<Segment>> Segment::Map(FileDescriptor descriptor,
                                                int size) {
  const size_t nbytes = SegmentBytes(size);
  auto base = MapSealedMemory(descriptor, nbytes);
  RING_KERAS_RETURN_IF_ERROR(base.status());
  return std::unique_ptr<Segment>(
      new Segment(std::move(descriptor), size, base.value(), nbytes));
}

StatusOr<std::unique_ptr<Segment>> Segment::Create(int size) {
  auto descriptor = CreateSealedMemory("ring_keras", SegmentBytes(size));
  RING_KERAS_RETURN_IF_ERROR(descriptor.status());
  auto segment = Map(std::move(descriptor.value()), size);
  if (!segment.ok()) return segment;
  auto nonce = NewNonce();
  RING_KERAS_RETURN_IF_ERROR(nonce.status());
  // Fresh pages are zero, which is every counter's first value.
  auto* header = new (&segment.value()->header()) SegmentHeader;
  header->sleeping.store(0, std::memory_order_relaxed);
  header->nonce = nonce.value();
  return segment;
}

StatusOr<std::unique_ptr<Segment>> Segment::Attach(int size, int pid,
                                                   int descriptor,
                                                   const SegmentNonce& nonce) {
  auto opened = OpenSealedMemory(pid, descriptor, SegmentBytes(size));
  RING_KERAS_RETURN_IF_ERROR(opened.status());
  auto segment = Map(std::move(opened.value()), size);
  if (segment.ok() && segment.value()->header().nonce != nonce) {
    return NotTheMemory(pid, descriptor);
  }
  // Mapped is enough: there may be hundreds on a host.
  if (segment.ok()) segment.value()->descriptor_.Close();
  return segment;
}

InboxRing& Segment::inbox(int sender) {
  return reinterpret_cast<InboxRing*>(base_ + kHeaderBytes)[sender];
}

}  // namespace ring_keras
