// Memory for callers in this rank's segment, so that the ranks of its host can
// reduce it in place.
#ifndef RING_KERAS_TRANSPORT_SHM_BUFFER_ALLOCATOR_H_
#define RING_KERAS_TRANSPORT_SHM_BUFFER_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tf_ops/common/fork.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/child_copies.h"
#include "tf_ops/transport/shm/segment.h"

namespace ring_keras {

// Thread-safe.
class BufferAllocator : public std::enable_shared_from_this<BufferAllocator> {
 public:
  explicit BufferAllocator(std::shared_ptr<Segment> own);

  // Zeroed memory, aligned to a page. It goes back, and its pages to the
  // system, with the last reference. Errors: ResourceExhausted.
  StatusOr<std::shared_ptr<void>> Allocate(size_t nbytes);

  // Offset in the buffer area; nothing if the range is not all in one buffer.
  bool Find(const void* data, size_t nbytes, uint64_t* offset) const;

  // The same, of what shares no page with other data of its buffer.
  bool FindAlone(const void* data, size_t nbytes, uint64_t* offset) const;
  // Puts fresh memory of this process alone, zeroed, in place of such pages,
  // for good: what peers still write to them is lost, and nothing in their
  // buffer is found any more.
  void Isolate(uint64_t offset, size_t nbytes);

 private:
  struct Buffer {
    size_t nbytes = 0;  // As asked for.
    bool isolated = false;
  };
  using Buffers = std::map<uint64_t, Buffer>;
  // The buffer that holds the range; end() if none does.
  Buffers::const_iterator Holding(uint64_t offset, size_t nbytes) const;
  // Find(), and where the buffer ends.
  std::optional<uint64_t> FindIn(const void* data, size_t nbytes,
                                 uint64_t* offset) const;
  StatusOr<uint64_t> Take(size_t nbytes);
  void Free(uint64_t offset);
  std::vector<UsedBlock> InUse() const;

  std::shared_ptr<Segment> own_;
  // A forked child that drops its copy of a buffer gives nothing back.
  OwnerProcess owner_;
  mutable std::mutex mutex_;         // Guards the rest.
  Buffers taken_;                    // By offset.
  std::map<uint64_t, size_t> free_;  // The gaps between them: size by offset.
  ChildCopies child_copies_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_BUFFER_ALLOCATOR_H_
