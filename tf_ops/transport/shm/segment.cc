#include "tf_ops/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

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

Segment::Segment(int descriptor, int size, char* base, size_t nbytes)
    : descriptor_(descriptor),
      base_(base),
      nbytes_(nbytes),
      windows_offset_(WindowsOffset(size)) {}

Segment::~Segment() {
  munmap(base_, nbytes_);
  close(descriptor_);
}

StatusOr<std::unique_ptr<Segment>> Segment::Map(int descriptor, int size) {
  const size_t nbytes = SegmentBytes(size);
  void* base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) {
    const Status status(
        StatusCode::kResourceExhausted,
        StrCat("cannot map ", nbytes >> 20,
               " MiB of shared memory (address space only; is `ulimit -v` "
               "set?): ",
               ErrnoMessage(errno)));
    close(descriptor);
    return status;
  }
  // Fewer page faults and address translations, where the system allows it.
  madvise(base, nbytes, MADV_HUGEPAGE);
  return std::unique_ptr<Segment>(
      new Segment(descriptor, size, static_cast<char*>(base), nbytes));
}

StatusOr<std::unique_ptr<Segment>> Segment::Create(int size) {
  const int descriptor = memfd_create("ring_keras", MFD_CLOEXEC);
  if (descriptor < 0) {
    return Status(StatusCode::kInternal,
                  StrCat("memfd_create failed: ", ErrnoMessage(errno)));
  }
  if (ftruncate(descriptor, static_cast<off_t>(SegmentBytes(size))) != 0) {
    const Status status(
        StatusCode::kInternal,
        StrCat("cannot size shared memory: ", ErrnoMessage(errno)));
    close(descriptor);
    return status;
  }
  auto segment = Map(descriptor, size);
  if (!segment.ok()) return segment;
  // Fresh pages are zero, which is every counter's first value.
  auto* header = new (&segment.value()->header()) SegmentHeader;
  header->sleeping.store(0, std::memory_order_relaxed);
  const ssize_t filled =
      getrandom(header->nonce.data(), header->nonce.size(), 0);
  if (filled != static_cast<ssize_t>(header->nonce.size())) {
    return Status(StatusCode::kInternal,
                  StrCat("getrandom failed: ", ErrnoMessage(errno)));
  }
  return segment;
}

StatusOr<std::unique_ptr<Segment>> Segment::Attach(int size, int pid,
                                                   int descriptor,
                                                   const SegmentNonce& nonce) {
  const std::string path = StrCat("/proc/", pid, "/fd/", descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open ", path, ": ", ErrnoMessage(errno)));
  }
  const Status not_it(StatusCode::kInternal,
                      StrCat(path, " is not the segment that was announced"));
  // To touch memory past the end of a file is fatal: the size comes first.
  struct stat file = {};
  if (fstat(opened, &file) != 0 ||
      static_cast<size_t>(file.st_size) != SegmentBytes(size)) {
    close(opened);
    return not_it;
  }
  auto segment = Map(opened, size);
  if (segment.ok() && segment.value()->header().nonce != nonce) return not_it;
  return segment;
}

InboxRing& Segment::inbox(int sender) {
  return reinterpret_cast<InboxRing*>(base_ + kHeaderBytes)[sender];
}

}  // namespace ring_keras
