#include "tf_ops/transport/shm/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace ring_keras {
namespace {

// The last one: nobody takes them off.
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::string PathOf(int pid, int descriptor) {
  return StrCat("/proc/", pid, "/fd/", descriptor);
}

}  // namespace

Status NotTheMemory(int pid, int descriptor) {
  return Status(
      StatusCode::kInternal,
      StrCat(PathOf(pid, descriptor), " is not the memory that was announced"));
}

size_t PageBytes() {
  static const auto nbytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return nbytes;
}

size_t WholePages(size_t nbytes) {
  return (nbytes + PageBytes() - 1) / PageBytes() * PageBytes();
}

StatusOr<FileDescriptor> CreateSealedMemory(const char* name, size_t nbytes) {
  FileDescriptor memory(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("memfd_create failed: ", ErrnoMessage(errno)));
  }
  if (ftruncate(memory.get(), static_cast<off_t>(nbytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot size shared memory: ", ErrnoMessage(errno)));
  }
  return memory;
}

StatusOr<FileDescriptor> OpenSealedMemory(int pid, int descriptor,
                                          size_t nbytes) {
  const std::string path = PathOf(pid, descriptor);
  FileDescriptor memory(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory.valid()) {
    return Status(StatusCode::kInternal,
                  StrCat("cannot open ", path, ": ", ErrnoMessage(errno)));
  }
  // To touch memory past the end of a file is fatal: the size comes first, and
  // that it stays.
  struct stat file = {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals ||
      fstat(memory.get(), &file) != 0 ||
      static_cast<size_t>(file.st_size) != nbytes) {
    return NotTheMemory(pid, descriptor);
  }
  return memory;
}

StatusOr<char*> MapSealedMemory(const FileDescriptor& memory, size_t nbytes) {
  void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (data == MAP_FAILED) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("cannot map ", nbytes >> 20,
               " MiB of shared memory (address space only; is `ulimit -v` "
               "set?): ",
               ErrnoMessage(errno)));
  }
  // Fewer page faults and address translations, where the system allows it.
  // With pages of 64 KiB a huge one has 512 MiB, which costs more than it
  // saves.
  if (PageBytes() == 4096) madvise(data, nbytes, MADV_HUGEPAGE);
  madvise(data, nbytes, MADV_DONTDUMP);
  madvise(data, nbytes, MADV_DONTFORK);
  return static_cast<char*>(data);
}

bool ReplaceByPrivate(char* data, size_t nbytes) {
  return mmap(data, nbytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

StatusOr<SegmentNonce> NewNonce() {
  SegmentNonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) !=
      static_cast<ssize_t>(nonce.size())) {
    return Status(StatusCode::kInternal,
                  StrCat("getrandom failed: ", ErrnoMessage(errno)));
  }
  return nonce;
}

}  // namespace ring_keras
