// How long a driver without news looks for some before it sleeps.
//
// To look on is quickest while the core is free. Where others want it, they may
// be the very ranks it waits for: ranks that share a core and yield after each
// look come in turn within microseconds, and none has to be woken. From one who
// computes, a core that is offered comes back only when his time slice is over:
// then the driver sleeps at once, and is woken by what comes. Ranks cannot
// count who shares their cores (network namespaces, containers, TensorFlow's
// own threads), so this measures how long others keep a core that is offered.
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

  // `woken`: whether what comes wakes a driver that sleeps. Where it does not,
  // one that sleeps, or has offered its core, hears of it late in any case: it
  // keeps the core for as long as a peer needs that works at the same.
  explicit IdleBackoff(bool woken = true) : woken_(woken) {}

  // There was news.
  void OnProgress() {
    idle_turns_ = 0;
    if (sleeps_left_ == 0 && ++quiet_turns_ > kQuietTurns)
      next_sleeps_ = kSleeps;
  }

  // There was none: what to do before the next look, at so many peers. `moves`:
  // the looks themselves may have moved something that has not arrived yet.
  Step Next(int peers = 1, bool moves = false) {
    ++idle_turns_;
    if (!woken_) {
      const int looks = moves ? kUnwokenLooksWhileMoving : kUnwokenLooks;
      const int spins = std::max(kSpins, looks / std::max(1, peers));
      return idle_turns_ > spins ? Step::kSleep : Step::kSpin;
    }
    if (sleeps_left_ > 0 || idle_turns_ > kSpins) return Step::kSleep;
    const bool yields = shared_yields_ > 0 || idle_turns_ % kSpinsPerYield == 0;
    return yields ? Step::kYield : Step::kSpin;
  }

  void OnYield(const Yielded& yielded) {
    if (!yielded.to_others(kForeignTurn)) {
      if (shared_yields_ > 0) --shared_yields_;
      return;
    }
    shared_yields_ = kSharedYields;
    if (!yielded.to_others(kLongTurn)) return;
    const bool often = quiet_turns_ < kQuietTurns;
    quiet_turns_ = 0;
    if (!often) return;
    sleeps_left_ = next_sleeps_;
    next_sleeps_ = std::min(2 * next_sleeps_, kMaxSleeps);
  }

  void OnSleep() {
    if (sleeps_left_ > 0) --sleeps_left_;
  }

 private:
  static constexpr int kSpins = 200;
  // Some milliseconds, and some 20 ms, in which a message of 1 MiB is there at
  // 1 Gbit/s. A look at one peer of them takes one or two microseconds.
  static constexpr int kUnwokenLooks = 2000;
  static constexpr int kUnwokenLooksWhileMoving = 10000;
  static constexpr int kSpinsPerYield = 20;
  // Somebody else ran meanwhile. Then it yields in each idle turn, until nobody
  // has wanted the core so often.
  static constexpr std::chrono::microseconds kForeignTurn{2};
  static constexpr int kSharedYields = 64;
  // Longer than some ranks that share a core take to look and to yield in turn.
  static constexpr std::chrono::microseconds kLongTurn{200};
  // Then it sleeps this often before it tries again, which may cost the others
  // a turn; twice as often each time, until it has had no long turn for a
  // while. After that, one is anybody's: the machine's own, or its host's.
  static constexpr int kSleeps = 1000;
  static constexpr int kMaxSleeps = 8000;
  static constexpr int kQuietTurns = 10000;

  const bool woken_;
  int idle_turns_ = 0;
  int shared_yields_ = 0;  // Still to come.
  int quiet_turns_ = 0;    // With news, since the last long turn.
  int sleeps_left_ = 0;
  int next_sleeps_ = kSleeps;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_IDLE_BACKOFF_H_
