#include "tf_ops/torch/completions.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace ring_keras::torch_backend {
namespace {

// Its threads end with the process: nothing says when torch has no more
// callbacks.
class Threads {
 public:
  void Run(std::function<void()> task) {
    // A forked child has no threads, and no job: all there is to end are
    // errors.
    if (getpid() != pid_) return task();
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) {
      new std::function<void()>(std::move(task));  // Never destroyed, either.
      return;
    }
    tasks_.push_back(std::move(task));
    if (idle_ >= static_cast<int>(tasks_.size())) {
      changed_.notify_one();
    } else {
      std::thread([this] { Serve(); }).detach();
    }
  }

  bool ending() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

  void End() {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_ = true;
    over_.wait_for(lock, kLongestEnd,
                   [this] { return tasks_.empty() && running_ == 0; });
  }

 private:
  // One that waits for other ranks must not keep the process.
  static constexpr std::chrono::seconds kLongestEnd{2};

  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      while (tasks_.empty()) {
        ++idle_;
        changed_.wait(lock);
        --idle_;
      }
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
      lock.unlock();
      task();
      task = nullptr;  // What it keeps may be Python's.
      lock.lock();
      --running_;
      if (ended_) over_.notify_all();
    }
  }

  const pid_t pid_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  int idle_ = 0;  // Threads that wait, or are about to look.
  int running_ = 0;
  bool ended_ = false;
  std::condition_variable over_;
};

Threads& ThreadsOfProcess() {
  static auto* const threads = new Threads;
  return *threads;
}

// Hands tasks to threads when they are due.
class Clock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Clock() {
    std::thread([this] { Serve(); }).detach();
  }

  void Add(Time when, std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto added = tasks_.emplace(when, std::move(task));
    if (added == tasks_.begin()) changed_.notify_one();
  }

 private:
  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      if (tasks_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const auto first = tasks_.begin();
      if (first->first > std::chrono::steady_clock::now()) {
        const Time until = first->first;  // It may go meanwhile.
        changed_.wait_until(lock, until);
        continue;
      }
      RunOnThread(std::move(first->second));
      tasks_.erase(first);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Time, std::function<void()>> tasks_;
};

}  // namespace

void RunOnThread(std::function<void()> task) {
  ThreadsOfProcess().Run(std::move(task));
}

void EndThreads() { ThreadsOfProcess().End(); }

bool AreThreadsEnding() { return ThreadsOfProcess().ending(); }

void RunAt(std::chrono::steady_clock::time_point when,
           std::function<void()> task) {
  static auto* const clock = new Clock;
  clock->Add(when, std::move(task));
}

}  // namespace ring_keras::torch_backend
