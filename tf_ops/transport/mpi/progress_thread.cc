#include "tf_ops/transport/mpi/progress_thread.h"

#include <chrono>
#include <thread>
#include <utility>

namespace ring_keras::mpi {
namespace {

// A message is late by that at most; it takes a thousandth of a core.
constexpr std::chrono::milliseconds kInterval(5);
// A call that takes longer than that hangs in MPI.
constexpr std::chrono::seconds kLongestCall(2);

}  // namespace

void ProgressThread::Start(std::function<void()> go_on) {
  std::lock_guard<std::mutex> start_lock(mutex_);
  if (running_ || stopping_) return;
  running_ = true;
  std::thread([this, go_on = std::move(go_on)] {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kInterval, [this] { return stopping_; })) {
      lock.unlock();
      go_on();
      lock.lock();
    }
    running_ = false;
    changed_.notify_all();
  }).detach();
}

void ProgressThread::Stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, kLongestCall, [this] { return !running_; });
}

}  // namespace ring_keras::mpi
