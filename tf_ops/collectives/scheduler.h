// Resumes coroutines whose condition has come true. Not thread-safe.
//
// A driver with nothing else to do can make it patient: coroutines that wait
// for shared memory then look for a while before they suspend.
#ifndef RING_KERAS_COLLECTIVES_SCHEDULER_H_
#define RING_KERAS_COLLECTIVES_SCHEDULER_H_

#include <sched.h>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <utility>
#include <vector>

#include "tf_ops/common/pause.h"

namespace ring_keras {

class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual bool Ready() = 0;

   private:
    friend class Scheduler;
    std::coroutine_handle<> handle_;
  };

  // Awaitable: resumes once `condition()` is true. The condition is asked
  // often, on the driver's thread, and must be cheap. `spins` if it comes true
  // by what other processes write, while the driver does nothing.
  template <typename Condition>
  class Until final : public Waiter {
   public:
    Until(Scheduler& scheduler, Condition condition, bool spins = false)
        : scheduler_(scheduler),
          condition_(std::move(condition)),
          spins_(spins) {}
    bool Ready() override { return condition_(); }
    bool await_ready() {
      return condition_() || (spins_ && scheduler_.Spin(condition_));
    }
    void await_suspend(std::coroutine_handle<> handle) {
      scheduler_.Add(this, handle);
    }
    void await_resume() {}

   private:
    Scheduler& scheduler_;
    Condition condition_;
    bool spins_;
  };

  // For about `patience`, and until `interrupt`, Spin waits.
  void BePatient(Clock::duration patience, const std::atomic<bool>* interrupt) {
    patience_ = patience;
    patience_end_ = Clock::time_point();
    interrupt_ = interrupt;
  }
  void BeImpatient() { interrupt_ = nullptr; }

  // Waits for `condition()` while patience lasts; whether it came true. Offers
  // the core to others, at once if they have wanted it lately: they may be the
  // ranks it waits for.
  template <typename Condition>
  bool Spin(Condition& condition) {
    for (int turn = 0; interrupt_ != nullptr; ++turn) {
      if (turn < kPauses && contention_ == 0) {
        Pause();
      } else {
        Yield();
      }
      if (condition()) return true;
      if (interrupt_ != nullptr &&
          interrupt_->load(std::memory_order_relaxed)) {
        BeImpatient();
      }
    }
    return false;
  }

  // Resumes what is ready; whether anything was.
  bool RunReady() {
    bool ran = false;
    std::vector<Waiter*> waiters;
    waiters.swap(waiters_);
    for (Waiter* waiter : waiters) {
      if (waiter->Ready()) {
        ran = true;
        waiter->handle_.resume();  // May add waiters.
      } else {
        waiters_.push_back(waiter);
      }
    }
    return ran;
  }

  // Whether RunReady would resume something.
  bool AnyReady() const {
    for (Waiter* waiter : waiters_) {
      if (waiter->Ready()) return true;
    }
    return false;
  }

 private:
  // About 10 us.
  static constexpr int kPauses = 256;
  // To yield a core that nobody wants takes less.
  static constexpr std::chrono::microseconds kForeignTurn{3};
  // Quick yields after which it takes the core for its own again.
  static constexpr int kMaxContention = 64;

  void Yield() {
    const Clock::time_point start = Clock::now();
    // Patience starts at the first yield: most waits end before.
    if (patience_end_ == Clock::time_point()) patience_end_ = start + patience_;
    sched_yield();
    const Clock::time_point end = Clock::now();
    if (end - start > kForeignTurn) {
      contention_ = kMaxContention;
    } else if (contention_ > 0) {
      --contention_;
    }
    if (end >= patience_end_) BeImpatient();
  }

  void Add(Waiter* waiter, std::coroutine_handle<> handle) {
    waiter->handle_ = handle;
    waiters_.push_back(waiter);
  }

  std::vector<Waiter*> waiters_;
  Clock::duration patience_{};
  Clock::time_point patience_end_;
  const std::atomic<bool>* interrupt_ = nullptr;  // Null: no patience.
  int contention_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SCHEDULER_H_
