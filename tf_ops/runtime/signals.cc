#include "tf_ops/runtime/signals.h"

#include <atomic>

#include "tf_ops/runtime/runtime.h"

namespace ring_keras {
namespace {

std::atomic<SignalHandling> handling_of_process{nullptr};

}  // namespace

void SetSignalHandling(SignalHandling handling) {
  handling_of_process.store(handling);
}

bool HandleSignals() {
  const SignalHandling handling = handling_of_process.load();
  return handling != nullptr && handling();
}

void WaitHandlingSignals(std::unique_lock<std::mutex>& lock,
                         std::condition_variable& changed,
                         const std::function<bool()>& is_over,
                         int communicator_id) {
  while (!changed.wait_for(lock, kSignalInterval, is_over)) {
    lock.unlock();
    if (HandleSignals()) Runtime::Get().Interrupt(communicator_id);
    lock.lock();
  }
}

}  // namespace ring_keras
