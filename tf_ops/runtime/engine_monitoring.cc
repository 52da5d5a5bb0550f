// How others read what is the driver's.
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

void Engine::WithDriver(const std::function<void()>& look) noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  Look asked{&look};
  if (driving_) {
    looks_.push_back(&asked);
    has_news_.store(true);
    WakeDriver();
    ended_.wait(lock, [&] { return asked.done || !driving_; });
    if (asked.done) return;
    std::erase(looks_, &asked);
  }
  driving_ = true;
  lock.unlock();
  look();
  lock.lock();
  StopDriving();
}

void Engine::TakeLooks() {
  std::vector<Look*> looks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    looks.swap(looks_);
  }
  if (looks.empty()) return;
  for (const Look* look : looks) (*look->function)();
  std::lock_guard<std::mutex> lock(mutex_);
  for (Look* look : looks) look->done = true;
  ended_.notify_all();
}

}  // namespace ring_keras
