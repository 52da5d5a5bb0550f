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
// itself; a reader cannot tell. A wrong choice, as after a window whose pages
// come as they are written, costs a fraction of the time until the next trial.
#ifndef RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_
#define RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tf_ops/common/ticks.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras {

// Of one communicator, which packs one slot at a time.
class StreamingChoice {
 public:
  // A smaller slot says little about the time that a byte takes: it is written
  // through the caches, and does not ask.
  static constexpr size_t kLeastBytes = size_t{16} << 10;

  // How to write a slot, and whether to Note() how long that took.
  struct Way {
    bool streams = false;
    bool is_timed = false;
  };

  // What is found better.
  bool streams() const { return streams_; }

  // Of the next slot: what is found better, and now and then the other way.
  Way Next() {
    ++slots_;
    // Spread evenly over all numbers, whatever the rhythm of what is packed.
    const uint32_t draw = slots_ * 0x9E3779B9u;
    const bool is_timed = draw < kAll / kTimedEvery;
    if (!streams()) {
      const bool is_known = streaming_cost_ > 0;
      return {draw < kAll / (is_known ? kTrialEvery : kFirstTrialEvery),
              is_timed};
    }
    if (slots_ <= wait_) return {true, is_timed};
    if (slots_ >= wait_ + kTrialSlots) {
      slots_ = 0;
      wait_ = std::min(2 * wait_, kLongestWait);
    }
    return {false, true};
  }

  // `nbytes`, kLeastBytes or more, took so long, written one way or the other.
  void Note(bool streamed, size_t nbytes, Ticks ticks) {
    const float cost = static_cast<float>(ticks) / static_cast<float>(nbytes);
    if (streamed) {
      streaming_cost_ = cost;
    } else if (streaming_cost_ == 0) {
      return;
    } else if (streams()) {
      if (cost < kReturnBelow * streaming_cost_) Choose(false);
    } else if (cost < kLeaveAbove * streaming_cost_) {
      slow_in_a_row_ = 0;
    } else if (++slow_in_a_row_ >= kSlowInARow) {
      Choose(true);
    }
  }

 private:
  static constexpr uint32_t kAll = ~uint32_t{0};
  // On average. The clock takes 1 % of a short slot's time, a streamed slot
  // twice as long as another where cores share a cache.
  static constexpr uint32_t kTimedEvery = 4;
  static constexpr uint32_t kFirstTrialEvery = 16;
  static constexpr uint32_t kTrialEvery = 256;
  // Where streaming is better, a trial is so many slots in a row. The first of
  // them are fetched from memory, where streaming has left them: most windows
  // have 16 slots or fewer. Where the cores share no cache, a slot of a trial
  // takes 5 to 20 times as long as a streamed one, so that a trial costs as
  // much as 160 to 760 of those.
  static constexpr uint32_t kTrialSlots = 40;
  static constexpr uint32_t kFirstWait = 512;
  static constexpr uint32_t kLongestWait = 8192;
  // Of the time past the caches. In the calm phases of that machine, writing
  // through them takes 0.4 to 1.2 of it, and up to 3 where one slot came from
  // memory and the other did not; in the slow ones 5 to 20. At 2.7 it takes as
  // long in all, the readers' time included.
  static constexpr float kLeaveAbove = 4;
  static constexpr float kReturnBelow = 2.7f;
  // A slot may be slow because its rank lost its core.
  static constexpr int kSlowInARow = 4;

  void Choose(bool streams) {
    slow_in_a_row_ = 0;
    slots_ = 0;
    wait_ = kFirstWait;
    streams_ = streams;
  }

  bool streams_ = false;
  uint32_t slots_ = 0;  // While they are streamed: since the last trial.
  uint32_t wait_ = kFirstWait;  // Slots that are streamed before a trial.
  int slow_in_a_row_ = 0;
  float streaming_cost_ = 0;  // Ticks a byte; 0: not known yet.
};

// Writes a slot that others read once it is gone.
class ShowingCopy {
 public:
  // A slot of up to `nbytes`.
  ShowingCopy(StreamingChoice& choice, size_t nbytes) : choice_(choice) {
    if (nbytes < StreamingChoice::kLeastBytes) return;
    way_ = choice.Next();
    if (way_.is_timed) begin_ = Now();
  }
  ~ShowingCopy() {
    if (streamed_) StreamingFence();
    if (way_.is_timed && nbytes_ >= StreamingChoice::kLeastBytes) {
      choice_.Note(way_.streams, nbytes_, Now() - begin_);
    }
  }
  ShowingCopy(const ShowingCopy&) = delete;
  ShowingCopy& operator=(const ShowingCopy&) = delete;

  // Like memcpy.
  void operator()(void* to, const void* from, size_t nbytes) {
    nbytes_ += nbytes;
    if (way_.streams && nbytes >= kLeastStreamedBytes) {
      StreamingCopy(to, from, nbytes);
      streamed_ = true;
    } else if (nbytes > 0) {
      std::memcpy(to, from, nbytes);
    }
  }

 private:
  // Less is mostly its first and its last line, which are not whole.
  static constexpr size_t kLeastStreamedBytes = 512;

  StreamingChoice& choice_;
  StreamingChoice::Way way_;
  Ticks begin_ = 0;
  size_t nbytes_ = 0;
  bool streamed_ = false;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_STREAMING_CHOICE_H_
