// How long a driver without news looks for some before it sleeps.
//
// To look on is quickest while the core is free. Where other threads want the
// core, maybe the very ranks it waits for, looking on keeps them from it: then
// the driver sleeps at once. Ranks cannot count who shares their cores (network
// namespaces, containers, TensorFlow's own threads), so this measures it: to
// yield a core that nobody wants takes no time.
//
// Scheduler::Spin measures the same for one wait, for what another rank is
// about to write, and sooner takes the core for its own again: that is over in
// microseconds. This is for a driver that knows of nothing.
#ifndef RING_KERAS_RUNTIME_IDLE_BACKOFF_H_
#define RING_KERAS_RUNTIME_IDLE_BACKOFF_H_

#include <algorithm>
#include <chrono>

#include "tf_ops/common/yield.h"

namespace ring_keras {

class IdleBackoff {
 public:
  enum class Step { kSpin, kYield, kSleep };

  // There was news.
  void OnProgress() {
    idle_turns_ = 0;
    if (sleeps_left_ == 0 && ++quiet_turns_ > kQuietTurns)
      next_sleeps_ = kSleeps;
  }

  // There was none: what to do before the next look.
  Step Next() {
    ++idle_turns_;
    if (sleeps_left_ > 0 || idle_turns_ > kSpins) return Step::kSleep;
    return idle_turns_ % kSpinsPerYield == 0 ? Step::kYield : Step::kSpin;
  }

  void OnYield(const Yielded& yielded) {
    if (!yielded.to_others(kForeignTurn)) return;
    sleeps_left_ = next_sleeps_;
    next_sleeps_ = std::min(2 * next_sleeps_, kMaxSleeps);
    quiet_turns_ = 0;
  }

  void OnSleep() {
    if (sleeps_left_ > 0) --sleeps_left_;
  }

 private:
  static constexpr int kSpins = 200;
  static constexpr int kSpinsPerYield = 20;
  // Somebody else ran meanwhile.
  static constexpr std::chrono::microseconds kForeignTurn{5};
  // Then it sleeps this often before it tries again, which may cost the others
  // a turn; twice as often each time, until it has had the core to itself for a
  // while.
  static constexpr int kSleeps = 1000;
  static constexpr int kMaxSleeps = 64000;
  static constexpr int kQuietTurns = 10000;

  int idle_turns_ = 0;
  int quiet_turns_ = 0;  // With news and without contention.
  int sleeps_left_ = 0;
  int next_sleeps_ = kSleeps;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_IDLE_BACKOFF_H_
