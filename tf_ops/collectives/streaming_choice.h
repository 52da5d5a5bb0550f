// Whether to write past the caches what another core reads next, learnt from
// how long either way takes.
//
// Between cores that share a cache, what was just written is read from there.
// But a line that another core has read must be taken back from it before it is
// written, which takes long if the two share none. On one virtual machine whose
// host moves its cores, there were phases in which that took 26 ns a line, and
// writing past the caches 2: then it is better that readers fetch from memory,
// which costs them 3 ns a line.
//
// What a system says of its caches is no help: such a machine says the same in
// every phase. So both ways are timed, each now and then. Each rank chooses for
// itself; a reader cannot tell. Several threads may ask at once: what one of
// them misses is a sample.
#ifndef RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_
#define RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tf_ops/common/ticks.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {

class StreamingChoice {
 public:
  // Pieces of fewer bytes say little about the time of one.
  static constexpr size_t kLeastTimedBytes = size_t{16} << 10;

  // What is found better.
  bool streams() const { return streams_.load(std::memory_order_relaxed); }

  // How to write the next piece, of kLeastTimedBytes or more: what is found
  // better, and now and then the other way.
  bool Next() {
    const uint32_t pieces = pieces_.load(std::memory_order_relaxed) + 1;
    const uint32_t wait = wait_.load(std::memory_order_relaxed);
    const bool is_trial = pieces >= wait;
    pieces_.store(is_trial ? 0 : pieces, std::memory_order_relaxed);
    if (!is_trial) return streams();
    wait_.store(wait < kTrialEvery ? 2 * wait : kTrialEvery,
                std::memory_order_relaxed);
    return !streams();
  }

  // A piece took so long, written one way or the other.
  void Note(bool streamed, size_t nbytes, Ticks ticks) {
    const float cost = static_cast<float>(ticks) / static_cast<float>(nbytes);
    if (streamed) {
      streaming_cost_.store(cost, std::memory_order_relaxed);
      return;
    }
    const float other = streaming_cost_.load(std::memory_order_relaxed);
    if (other == 0) return;
    if (streams()) {
      if (cost < kReturnBelow * other) Choose(false);
    } else if (cost < kLeaveAbove * other) {
      slow_in_a_row_.store(0, std::memory_order_relaxed);
    } else {
      const int slow = slow_in_a_row_.load(std::memory_order_relaxed) + 1;
      slow_in_a_row_.store(slow, std::memory_order_relaxed);
      if (slow >= kSlowInARow) Choose(true);
    }
  }

 private:
  // Wrong for a while costs a fraction; so does each trial. The first ones come
  // sooner, but not before the memory has been touched once.
  static constexpr uint32_t kFirstTrial = 16;
  static constexpr uint32_t kTrialEvery = 256;
  // Of the time past the caches. In the good phases of that machine, writing
  // through them takes 0.8 to 1.2 of it, and up to 3 where one piece came from
  // memory and the other did not; in the bad ones 5 to 20.
  static constexpr float kLeaveAbove = 4;
  static constexpr float kReturnBelow = 2;
  // A piece may be slow because its rank lost its core.
  static constexpr int kSlowInARow = 4;

  void Choose(bool streams) {
    slow_in_a_row_.store(0, std::memory_order_relaxed);
    pieces_.store(0, std::memory_order_relaxed);
    streams_.store(streams, std::memory_order_relaxed);
  }

  std::atomic<bool> streams_{false};
  std::atomic<uint32_t> pieces_{0};  // Since the last trial.
  std::atomic<uint32_t> wait_{kFirstTrial};
  std::atomic<int> slow_in_a_row_{0};
  std::atomic<float> streaming_cost_{0};  // Ticks a byte; 0: not known yet.
};

// Copies into memory that others read once it is gone.
class ShowingCopy {
 public:
  explicit ShowingCopy(StreamingChoice& choice) : choice_(choice) {}
  ~ShowingCopy() {
    if (streamed_) StreamingFence();
  }
  ShowingCopy(const ShowingCopy&) = delete;
  ShowingCopy& operator=(const ShowingCopy&) = delete;

  // Like memcpy.
  void operator()(void* to, const void* from, size_t nbytes) {
    if (nbytes < StreamingChoice::kLeastTimedBytes) {
      return Copy(to, from, nbytes,
                  nbytes >= kLeastStreamedBytes && choice_.streams());
    }
    const bool streams = choice_.Next();
    const Ticks begin = Now();
    Copy(to, from, nbytes, streams);
    choice_.Note(streams, nbytes, Now() - begin);
  }

 private:
  // Less is mostly its first and its last line, which are not whole.
  static constexpr size_t kLeastStreamedBytes = 512;

  void Copy(void* to, const void* from, size_t nbytes, bool streams) {
    streamed_ |= streams;
    if (streams) {
      StreamingCopy(to, from, nbytes);
    } else if (nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }

  StreamingChoice& choice_;
  bool streamed_ = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_
