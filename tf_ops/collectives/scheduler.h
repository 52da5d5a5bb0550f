// Resumes coroutines whose condition has come true. Not thread-safe.
//
// Coroutines that wait for shared memory may look for a while before they
// suspend: always, where ranks take turns within one collective, because what
// it works on is in the caches; else if a driver with nothing else to do asks
// for it (SpinLonger). One that has much to do gives way from time to time,
// so that other collectives, deadlines and interruption have their turn.
#ifndef RING_KERAS_COLLECTIVES_SCHEDULER_H_
#define RING_KERAS_COLLECTIVES_SCHEDULER_H_

#include <atomic>
#include <chrono>
#include <coroutine>
#include <utility>

#include "tf_ops/common/pause.h"
#include "tf_ops/common/yield.h"

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
    Waiter* next_ = nullptr;
  };

  // How a coroutine waits. What it looks for must come true by what other
  // processes write, while the driver does nothing.
  enum class Look { kNever, kIfAlone, kAlways };

  // Awaitable: resumes once `condition()` is true. The condition is asked
  // often, on the driver's thread, and must be cheap.
  template <typename Condition>
  class Until final : public Waiter {
   public:
    Until(Scheduler& scheduler, Condition condition, Look look = Look::kNever)
        : scheduler_(scheduler),
          condition_(std::move(condition)),
          look_(look) {}
    bool Ready() override { return condition_(); }
    bool await_ready() {
      return condition_() || scheduler_.Spin(look_, condition_, &looked_);
    }
    void await_suspend(std::coroutine_handle<> handle) {
      looked_ = kPauses;
      scheduler_.Add(this, handle);
    }
    // Whether it waited for more than a few looks.
    bool await_resume() { return looked_ > kQuickLooks; }

   private:
    Scheduler& scheduler_;
    Condition condition_;
    Look look_;
    int looked_ = 0;
  };

  // How long a coroutine may work before it gives way.
  class Turn {
   public:
    // Begins when first asked, so that short work never looks at the clock.
    bool IsOver() {
      const Clock::time_point now = Clock::now();
      if (end_ == Clock::time_point()) end_ = now + kTurn;
      return now >= end_;
    }

   private:
    static constexpr std::chrono::milliseconds kTurn{1};
    Clock::time_point end_;
  };

  // Waits keep the core for about `duration`, and until `interrupt`.
  void SpinLonger(Clock::duration duration,
                  const std::atomic<bool>* interrupt) {
    spin_duration_ = duration;
    spin_end_ = Clock::time_point();
    interrupt_ = interrupt;
  }
  void SpinBriefly() { interrupt_ = nullptr; }

  // Waits for `condition()`, which other processes make true, for some
  // microseconds; only looks once while others want the core. Whether it holds,
  // and in `waited` whether that took more than a few looks.
  template <typename Condition>
  bool LookBriefly(Condition condition, bool* waited = nullptr) {
    int looked = 0;
    while (!condition()) {
      if (contention_ != 0 || ++looked > kPauses) return false;
      Pause();
    }
    if (waited != nullptr) *waited = looked > kQuickLooks;
    return true;
  }

  // Resumes what is ready; whether anything was.
  bool RunReady() {
    bool ran = false;
    Waiter* waiter = std::exchange(first_, nullptr);
    last_ = nullptr;
    while (waiter != nullptr) {
      Waiter* next = waiter->next_;
      if (waiter->Ready()) {
        ran = true;
        waiter->handle_.resume();  // May add waiters; this one is gone.
      } else {
        Append(waiter);
      }
      waiter = next;
    }
    return ran;
  }

  // Whether RunReady would resume something.
  bool AnyReady() const {
    for (Waiter* waiter = first_; waiter != nullptr; waiter = waiter->next_) {
      if (waiter->Ready()) return true;
    }
    return false;
  }
  // Whether no coroutine waits.
  bool idle() const { return first_ == nullptr; }

 private:
  // Some microseconds.
  static constexpr int kPauses = 256;
  // Half a microsecond at most: less than a look at a clock is worth.
  static constexpr int kQuickLooks = 16;
  static constexpr std::chrono::microseconds kForeignTurn{3};
  // Quick yields after which it takes the core for its own again.
  static constexpr int kMaxContention = 64;

  // Waits for `condition()`, for a moment or for `spin_duration_`; whether it
  // came true. The longer wait offers the core to others, at once if they have
  // wanted it lately: they may be the ranks it waits for.
  template <typename Condition>
  bool Spin(Look look, Condition& condition, int* looked) {
    if (look == Look::kNever) return false;
    if (look == Look::kAlways || interrupt_ != nullptr) {
      while (*looked < kPauses && contention_ == 0) {
        Pause();
        ++*looked;
        if (condition()) return true;
      }
    }
    *looked = kPauses;
    while (interrupt_ != nullptr) {
      OfferCore();
      if (condition()) return true;
    }
    return false;
  }

  void OfferCore() {
    const Yielded yielded = Yield();
    // The time begins at the first yield: most waits end before.
    if (spin_end_ == Clock::time_point()) {
      spin_end_ = yielded.end - yielded.taken + spin_duration_;
    }
    if (yielded.to_others(kForeignTurn)) {
      contention_ = kMaxContention;
    } else if (contention_ > 0) {
      --contention_;
    }
    if (yielded.end >= spin_end_ ||
        interrupt_->load(std::memory_order_relaxed)) {
      SpinBriefly();
    }
  }

  void Add(Waiter* waiter, std::coroutine_handle<> handle) {
    waiter->handle_ = handle;
    Append(waiter);
  }

  // A list of their own links: to wait must not fail for want of memory.
  void Append(Waiter* waiter) {
    waiter->next_ = nullptr;
    (last_ == nullptr ? first_ : last_->next_) = waiter;
    last_ = waiter;
  }

  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
  Clock::duration spin_duration_{};
  Clock::time_point spin_end_;
  const std::atomic<bool>* interrupt_ = nullptr;  // Null: spins briefly.
  int contention_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SCHEDULER_H_
