#include "tf_ops/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

namespace ring_keras {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// The last one: nobody takes them off.
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
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

// In a forked child.
void Segment::KeepBuffersPrivate() {
  const void* mapped =
      mmap(buffers(), kBufferAreaBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, descriptor_.get(),
           static_cast<off_t>(windows_offset_ + kWindowAreaBytes));
  // Rather a crash of the child than wrong numbers in its parent.
  if (mapped == MAP_FAILED) munmap(buffers(), kBufferAreaBytes);
}

StatusOr<std::unique_ptr<Segment>> Segment::Map(FileDescriptor descriptor,
                                                int size) {
  const size_t nbytes = SegmentBytes(size);
  void* base = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, descriptor.get(), 0);
  if (base == MAP_FAILED) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("cannot map ", nbytes >> 20,
               " MiB of shared memory (address space only; is `ulimit -v` "
               "set?): ",
               ErrnoMessage(errno)));
  }
  // Fewer page faults and address translations, where the system allows it.
  madvise(base, nbytes, MADV_HUGEPAGE);
  madvise(base, nbytes, MADV_DONTDUMP);
  madvise(base, nbytes, MADV_DONTFORK);
  return std::unique_ptr<Segment>(new Segment(
      std::move(descriptor), size, static_cast<char*>(base), nbytes));
}

StatusOr<std::unique_ptr<Segment>> Segment::Create(int size) {
  FileDescriptor descriptor(
      memfd_create("ring_keras", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("memfd_create failed: ", ErrnoMessage(errno)));
  }
  if (ftruncate(descriptor.get(), static_cast<off_t>(SegmentBytes(size))) !=
          0 ||
      fcntl(descriptor.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot size shared memory: ", ErrnoMessage(errno)));
  }
  auto segment = Map(std::move(descriptor), size);
  if (!segment.ok()) return segment;
  Segment* own = segment.value().get();
  madvise(own->buffers(), kBufferAreaBytes, MADV_DOFORK);
  own->in_child_.emplace([own] { own->KeepBuffersPrivate(); });
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
  FileDescriptor opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open ", path, ": ", ErrnoMessage(errno)));
  }
  const Status not_it(StatusCode::kInternal,
                      StrCat(path, " is not the segment that was announced"));
  // To touch memory past the end of a file is fatal: the size comes first, and
  // that it stays.
  struct stat file = {};
  const int seals = fcntl(opened.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals ||
      fstat(opened.get(), &file) != 0 ||
      static_cast<size_t>(file.st_size) != SegmentBytes(size)) {
    return not_it;
  }
  auto segment = Map(std::move(opened), size);
  if (segment.ok() && segment.value()->header().nonce != nonce) return not_it;
  return segment;
}

InboxRing& Segment::inbox(int sender) {
  return reinterpret_cast<InboxRing*>(base_ + kHeaderBytes)[sender];
}

}  // namespace ring_keras
