// Offers the core to others, and finds out whether any wanted it.
#ifndef RING_KERAS_COMMON_YIELD_H_
#define RING_KERAS_COMMON_YIELD_H_

#include <sched.h>

#include <chrono>

namespace ring_keras {

struct Yielded {
  using Clock = std::chrono::steady_clock;

  Clock::time_point end;
  Clock::duration taken;

  // Whether somebody else ran meanwhile: to yield a core that nobody wants
  // takes less than `least`, of microseconds.
  bool to_others(Clock::duration least) const { return taken > least; }
};

inline Yielded Yield() {
  const Yielded::Clock::time_point start = Yielded::Clock::now();
  sched_yield();
  const Yielded::Clock::time_point end = Yielded::Clock::now();
  return {end, end - start};
}

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_YIELD_H_
