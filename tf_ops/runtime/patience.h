// How long a driver without news looks for some before it sleeps.
//
// To look on is quickest while the core is free. Where other threads want the
// core, maybe the very ranks it waits for, looking on keeps them from it: then
// the driver sleeps at once. Ranks cannot count who shares their cores (network
// namespaces, containers, TensorFlow's own threads), so this measures it: to
// yield a core that nobody wants takes no time.
#ifndef RING_KERAS_RUNTIME_PATIENCE_H_
#define RING_KERAS_RUNTIME_PATIENCE_H_

#include <sched.h>

#include <chrono>

namespace ring_keras {

class Patience {
 public:
  enum class Step { kLook, kYield, kSleep };

  // There was news.
  void OnProgress() { idle_turns_ = 0; }

  // There was none: what to do before the next look.
  Step Next() {
    ++idle_turns_;
    if (sleeps_left_ > 0 || idle_turns_ > kLooks) return Step::kSleep;
    return idle_turns_ % kLooksPerYield == 0 ? Step::kYield : Step::kLook;
  }

  void Yield() {
    const auto start = std::chrono::steady_clock::now();
    sched_yield();
    OnYield(std::chrono::steady_clock::now() - start);
  }
  // How long a yield took.
  void OnYield(std::chrono::nanoseconds taken) {
    if (taken > kForeignTurn) sleeps_left_ = kSleepsAfterContention;
  }

  void OnSleep() {
    if (sleeps_left_ > 0) --sleeps_left_;
  }

 private:
  static constexpr int kLooks = 200;
  static constexpr int kLooksPerYield = 20;
  // Somebody else ran meanwhile.
  static constexpr std::chrono::microseconds kForeignTurn{5};
  // Then it tries again, which may cost the others a turn.
  static constexpr int kSleepsAfterContention = 1000;

  int idle_turns_ = 0;
  int sleeps_left_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_PATIENCE_H_
