// The shared memory that one rank offers to the ranks of its host.
//
// Each rank creates one segment (a memfd: no name to leak, no /dev/shm limit)
// and maps those of the others. A segment holds, in this order: a header,
// one inbox ring per rank of the job, windows (see window.h), and buffers (see
// buffer_allocator.h): 20 GiB and a little for each rank of the host in each of
// its processes. Pages that nobody touches cost nothing, so that is address
// space.
//
// The memory is left out of core dumps.
//
// In a forked child the segment is not there, but for copies of the buffers, of
// which arrays may be left.
#ifndef RING_KERAS_TRANSPORT_SHM_SEGMENT_H_
#define RING_KERAS_TRANSPORT_SHM_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tf_ops/common/fork.h"
#include "tf_ops/common/socket.h"
#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/sealed_memory.h"

namespace ring_keras {

constexpr size_t kCacheLine = 64;
// Room for the announcements of a deep pipeline, small enough to stay in L2.
constexpr size_t kInboxBytes = size_t{64} << 10;
constexpr size_t kWindowAreaBytes = size_t{4} << 30;
constexpr size_t kBufferAreaBytes = size_t{16} << 30;

struct SegmentHeader {
  SegmentNonce nonce;  // Tells whether a mapping is the segment we meant.
  // Not 0 while the owner sleeps and wants its doorbell rung.
  alignas(kCacheLine) std::atomic<uint32_t> sleeping;
};

// One direction between two ranks: written by one, read by the other.
struct InboxRing {
  alignas(kCacheLine) std::atomic<uint64_t> written;
  alignas(kCacheLine) std::atomic<uint64_t> read;
  alignas(kCacheLine) char data[kInboxBytes];
};

class Segment {
 public:
  // Creates the segment of a rank in a job of `size` ranks.
  static StatusOr<std::unique_ptr<Segment>> Create(int size);

  // Maps the segment that process `pid` of this host created as descriptor
  // `descriptor`. Errors: Internal when it cannot be opened or its nonce
  // differs (another process has the pid in this namespace).
  static StatusOr<std::unique_ptr<Segment>> Attach(int size, int pid,
                                                   int descriptor,
                                                   const SegmentNonce& nonce);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int descriptor() const { return descriptor_.get(); }
  SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(base_); }
  // The ring into which rank `sender` writes for the owner.
  InboxRing& inbox(int sender);
  // Start of the window area, which is kWindowAreaBytes long.
  char* windows() { return base_ + windows_offset_; }
  // Start of the memory that callers may ask for, kBufferAreaBytes long.
  char* buffers() { return windows() + kWindowAreaBytes; }

 private:
  Segment(FileDescriptor descriptor, int size, char* base, size_t nbytes);
  static StatusOr<std::unique_ptr<Segment>> Map(FileDescriptor descriptor,
                                                int size);

  FileDescriptor descriptor_;
  char* base_;
  size_t nbytes_;
  size_t windows_offset_;
  OwnerProcess owner_;
};

// Whether a peer's word for where its buffer is can be true.
inline bool IsWithinBuffers(uint64_t offset, size_t nbytes) {
  return offset <= kBufferAreaBytes && nbytes <= kBufferAreaBytes - offset;
}

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_SEGMENT_H_
