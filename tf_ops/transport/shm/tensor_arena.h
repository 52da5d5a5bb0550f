// Memory of a process from which its tensors come, so that the ranks of its
// host can reduce them where they lie.
//
// It lives as long as its process: TensorFlow's devices do, and their tensors
// outlast shutdown().
//
// In a forked child there are copies of the tensors, and nothing else of it.
#ifndef RING_KERAS_TRANSPORT_SHM_TENSOR_ARENA_H_
#define RING_KERAS_TRANSPORT_SHM_TENSOR_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tf_ops/common/fork.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/child_copies.h"
#include "tf_ops/transport/shm/sealed_memory.h"

namespace ring_keras {

// For each rank of the host in each of its processes. Pages that nobody touches
// cost nothing, so this is address space: 16 TiB for 256 ranks.
constexpr size_t kTensorAreaBytes = size_t{64} << 30;

// Thread-safe.
class TensorArena {
 public:
  static StatusOr<std::unique_ptr<TensorArena>> Create();

  // Maps what process `pid` of this host created as descriptor `descriptor`.
  // Errors: as those of Segment::Attach.
  static StatusOr<std::unique_ptr<TensorArena>> Attach(
      int pid, int descriptor, const SegmentNonce& nonce);

  // That of this process; null if it has none.
  static TensorArena* OfProcess();
  // Creates it, unless it is there.
  static Status CreateForProcess();

  ~TensorArena();
  TensorArena(const TensorArena&) = delete;
  TensorArena& operator=(const TensorArena&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const SegmentNonce& nonce() const;
  // kTensorAreaBytes.
  char* data() const { return base_ + kHeaderBytes; }
  // Where peers find a range; none if it is not all here, or isolated.
  std::optional<uint64_t> OffsetOf(const void* data, size_t nbytes) const;
  // Whether a peer's word for where it has a range can be true.
  static bool IsWithin(uint64_t offset, size_t nbytes) {
    return offset <= kTensorAreaBytes && nbytes <= kTensorAreaBytes - offset;
  }

  // The allocator of tensors says which there are, for children that are
  // forked. In such a child it must take no memory from here.
  void NoteTaken(void* data, size_t nbytes);
  void NoteReturned(void* data);

  // Puts fresh memory of this process alone, zeroed, in place of whole pages,
  // for good: what peers still write to them is lost. The owner's.
  void Isolate(uint64_t offset, size_t nbytes);

 private:
  // A huge page, so that the data begin with one.
  static constexpr size_t kHeaderBytes = size_t{2} << 20;
  static constexpr size_t kBytes = kHeaderBytes + kTensorAreaBytes;

  TensorArena(FileDescriptor descriptor, char* base)
      : descriptor_(std::move(descriptor)), base_(base) {}
  std::vector<UsedBlock> Taken() const;

  FileDescriptor descriptor_;
  char* base_;
  OwnerProcess owner_;

  std::atomic<bool> any_isolated_{false};
  mutable std::mutex mutex_;  // Guards isolated_.
  // Sizes by offset. What is isolated is found no more, so no two overlap.
  std::map<uint64_t, size_t> isolated_;

  mutable std::mutex taken_mutex_;  // Guards taken_.
  std::unordered_map<char*, size_t> taken_;
  std::optional<ChildCopies> child_copies_;  // Of the process's own.
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_TENSOR_ARENA_H_
