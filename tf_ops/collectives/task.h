// Coroutines: an algorithm reads as straight-line code, and many of them make
// progress on one thread.
//
// A Task starts when it is awaited or Start()ed, and ends with a Status. It
// waits with `co_await scheduler.Until(condition)`.
#ifndef RING_KERAS_COLLECTIVES_TASK_H_
#define RING_KERAS_COLLECTIVES_TASK_H_

#include <coroutine>
#include <exception>
#include <new>
#include <utility>

#include "tf_ops/common/status.h"

namespace ring_keras {

class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    Status result;
    std::coroutine_handle<> awaiting = std::noop_coroutine();

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct ResumeAwaiting {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(Handle ended) noexcept {
          return ended.promise().awaiting;
        }
        void await_resume() noexcept {}
      };
      return ResumeAwaiting{};
    }
    void return_value(Status status) { result = std::move(status); }
    // The core throws nothing itself; the standard library may be out of
    // memory.
    void unhandled_exception() {
      try {
        throw;
      } catch (const std::bad_alloc&) {
        result = Status(StatusCode::kResourceExhausted, "out of memory");
      } catch (...) {
        std::terminate();
      }
    }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs until the first wait; for tasks that nobody awaits.
  void Start() { handle_.resume(); }
  bool done() const { return handle_.done(); }
  const Status& result() const { return handle_.promise().result; }

  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(
      std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().awaiting = awaiting;
    return handle_;
  }
  Status await_resume() { return handle_.promise().result; }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

#define RING_KERAS_CO_RETURN_IF_ERROR(expression)                   \
  do {                                                              \
    if (::ring_keras::Status status_ = (expression); !status_.ok()) \
      co_return status_;                                            \
  } while (false)

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_TASK_H_
