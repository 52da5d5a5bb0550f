// Windows: pieces of a rank's segment through which collectives show their
// data to the other ranks of the host.
//
// The owner fills slots behind the header and counts them up; readers on the
// host take the data straight from there. Counters only grow while a window is
// taken, each is written by one rank (readers_done: by every reader), and
// each has a cache line of its own. A window serves one collective, or, in a
// channel, all uses of a name, one after the other.
#ifndef RING_KERAS_TRANSPORT_SHM_WINDOW_H_
#define RING_KERAS_TRANSPORT_SHM_WINDOW_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/transport/shm/kept_windows.h"
#include "tf_ops/transport/shm/segment.h"

namespace ring_keras {

// What the owner says when it enters the `use`-th use of its window: in one
// cache line, so that a peer has all of it with one miss. `use` comes last.
struct alignas(kCacheLine) WindowPost {
  std::atomic<uint64_t> use;
  uint64_t signature;
  double weight;
  // Where the owner's tensors lie in its segment; kNowhere: in private memory.
  uint64_t input_offset;
  uint64_t output_offset;

  static constexpr uint64_t kNowhere = ~uint64_t{0};
  // In its arena (tensor_arena.h); a table in its window says where.
  static constexpr uint64_t kInArena = kNowhere - 1;
};

struct alignas(kCacheLine) Window {
  // Of even and of odd uses: a rank is never two uses ahead of another.
  WindowPost posts[2];
  alignas(kCacheLine) std::atomic<uint64_t> packed;   // Rounds filled.
  alignas(kCacheLine) std::atomic<uint64_t> reduced;  // Rounds combined.
  // Whether the owner has given up what it does with its peers: what they read
  // in its shared buffers from now on is no part of it.
  std::atomic<bool> withdrawn;
  // Rounds of *all* windows that the owner has read.
  alignas(kCacheLine) std::atomic<uint64_t> unpacked;
  // Peers that will not touch this window again.
  alignas(kCacheLine) std::atomic<uint32_t> readers_done;

  char* data() { return reinterpret_cast<char*>(this + 1); }
  // As new.
  void Reset();
};

// Hands out windows of one rank's segment. Not thread-safe.
class WindowAllocator {
 public:
  explicit WindowAllocator(Segment* own)
      : own_(own), gaps_({{0, kWindowAreaBytes}}) {}

  // A window with `data_nbytes` of data, counters at 0, and its offset in the
  // window area. Errors: ResourceExhausted.
  StatusOr<Window*> Allocate(size_t data_nbytes);
  uint64_t OffsetOf(const Window* window) const;

  // Gives the window back once `reader_count` readers are done with it;
  // returns at once.
  void Release(Window* window, uint32_t reader_count);

  // Those of channels.
  KeptWindows& kept() { return kept_; }

 private:
  struct Pending {
    Window* window;
    uint32_t reader_count;
  };
  void Reclaim();
  void Free(const Window* window);

  Segment* own_;
  KeptWindows kept_;
  // By offset in the window area.
  std::map<uint64_t, size_t> gaps_;
  std::unordered_map<uint64_t, size_t> taken_;
  std::vector<Pending> pending_;
};

// The window at `offset` of a peer's segment; null when out of range.
Window* WindowAt(Segment& segment, uint64_t offset);

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_WINDOW_H_
