#include "tf_ops/transport/shm/child_copies.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tf_ops/common/logging.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/sealed_memory.h"

namespace ring_keras {
namespace {

// From here on a user should know why forking takes long.
constexpr size_t kManyBytes = size_t{1} << 30;

constexpr char kAdvice[] =
    "To fork such a rank, set RING_KERAS_SHARE_TENSORS=0, and take ordinary "
    "arrays in place of shared_empty(); or start processes by "
    "multiprocessing's "
    "\"spawn\" method.";

}  // namespace

ChildCopies::ChildCopies(std::string what, char* data, size_t nbytes,
                         std::function<std::vector<UsedBlock>()> in_use)
    : what_(std::move(what)),
      data_(data),
      nbytes_(nbytes),
      in_use_(std::move(in_use)),
      handler_([this] { PutInPlace(); }, [this] { Make(); },
               [this] { Drop(); }) {
  // So that nothing else is there before the copies are.
  madvise(data, nbytes, MADV_DOFORK);
}

void ChildCopies::Make() {
  blocks_ = in_use_();
  copied_nbytes_ = 0;
  for (UsedBlock& block : blocks_) {
    block.nbytes = WholePages(block.nbytes);
    copied_nbytes_ += block.nbytes;
  }
  if (copied_nbytes_ == 0) return;
  void* mapped = mmap(nullptr, copied_nbytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    Log(LogLevel::kError,
        StrCat(Prefix(ErrorCode::kForkWithoutCopies),
               "this process forks, and there is no memory for the child's "
               "copies of ",
               what_, ", ", copied_nbytes_ >> 20, " MiB: ", ErrnoMessage(errno),
               ". The child ends with SIGSEGV if it touches them. ", kAdvice));
    return;
  }
  copies_ = static_cast<char*>(mapped);
  if (copied_nbytes_ >= kManyBytes && !std::exchange(has_warned_, true)) {
    Log(LogLevel::kWarning,
        StrCat(Prefix(ErrorCode::kForkWithoutCopies),
               "this process forks, and the child gets copies of ", what_, ", ",
               copied_nbytes_ >> 20, " MiB, which takes time and memory. ",
               kAdvice));
  }
  char* copy = copies_;
  for (const UsedBlock& block : blocks_) {
    std::memcpy(copy, block.data, block.nbytes);
    copy += block.nbytes;
  }
}

void ChildCopies::Drop() {
  if (copies_ != nullptr) munmap(copies_, copied_nbytes_);
  copies_ = nullptr;
  blocks_.clear();
}

void ChildCopies::PutInPlace() {
  // A crash of the child rather than wrong numbers, there or in its parent.
  if (mmap(data_, nbytes_, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED) {
    munmap(data_, nbytes_);
  }
  if (copies_ == nullptr) return;
  char* copy = copies_;
  for (const UsedBlock& block : blocks_) {
    if (mremap(copy, block.nbytes, block.nbytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               block.data) == MAP_FAILED) {
      // Of so many mappings that the system allows no more.
      constexpr char kText[] =
          "ring_keras: a forked process cannot have all memory of its rank, "
          "and dies if it touches it\n";
      [[maybe_unused]] const ssize_t written =
          write(STDERR_FILENO, kText, sizeof(kText) - 1);
      return;
    }
    copy += block.nbytes;
  }
}

}  // namespace ring_keras
