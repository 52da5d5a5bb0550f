// A clock that costs next to nothing to look at, and is the same for all
// processes of a host: the processor's time stamp counter where the kernel
// keeps its own time by it, else CLOCK_MONOTONIC in nanoseconds.
#ifndef RING_KERAS_COMMON_TICKS_H_
#define RING_KERAS_COMMON_TICKS_H_

#include <time.h>

#include <cstdint>

#include "tf_ops/common/export.h"

namespace ring_keras {

// A moment; 0 is none. How long one is, only a TickScale knows.
using Ticks = uint64_t;

// Whether the kernel trusts the counter: it runs at one speed, through idle
// states, and the same on all cores.
RING_KERAS_EXPORT extern const bool kTicksAreCounter;

inline Ticks Now() {
#if defined(__x86_64__)
  if (kTicksAreCounter) return __builtin_ia32_rdtsc();
#endif
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Ticks>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// What ticks are in seconds, measured from the start of the process to the
// moment that it was made.
class TickScale {
 public:
  TickScale();

  double seconds_per_tick() const { return seconds_per_tick_; }
  double Seconds(Ticks duration) const {
    return static_cast<double>(duration) * seconds_per_tick_;
  }
  // Seconds since 1970, by the clock of this host; 0 for no moment.
  double UnixTime(Ticks moment) const {
    if (moment == 0) return 0;
    const auto since = static_cast<int64_t>(moment - now_);
    return unix_now_ + static_cast<double>(since) * seconds_per_tick_;
  }

 private:
  Ticks now_;
  double unix_now_;
  double seconds_per_tick_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_TICKS_H_
