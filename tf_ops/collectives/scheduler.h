// Resumes coroutines whose condition has come true. Not thread-safe.
#ifndef RING_KERAS_COLLECTIVES_SCHEDULER_H_
#define RING_KERAS_COLLECTIVES_SCHEDULER_H_

#include <coroutine>
#include <utility>
#include <vector>

namespace ring_keras {

class Scheduler {
 public:
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual bool Ready() = 0;

   private:
    friend class Scheduler;
    std::coroutine_handle<> handle_;
  };

  // Awaitable: resumes once `condition()` is true. The condition is asked
  // often, on the driver's thread, and must be cheap.
  template <typename Condition>
  class Until final : public Waiter {
   public:
    Until(Scheduler& scheduler, Condition condition)
        : scheduler_(scheduler), condition_(std::move(condition)) {}
    bool Ready() override { return condition_(); }
    bool await_ready() { return condition_(); }
    void await_suspend(std::coroutine_handle<> handle) {
      scheduler_.Add(this, handle);
    }
    void await_resume() {}

   private:
    Scheduler& scheduler_;
    Condition condition_;
  };

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
  void Add(Waiter* waiter, std::coroutine_handle<> handle) {
    waiter->handle_ = handle;
    waiters_.push_back(waiter);
  }

  std::vector<Waiter*> waiters_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_SCHEDULER_H_
