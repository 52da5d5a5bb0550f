#include "tf_ops/kernels/xla/started_calls.h"

namespace ring_keras {

StartedCalls& StartedCalls::Get() {
  static StartedCalls* calls = new StartedCalls;
  return *calls;
}

void StartedCalls::Add(int64_t number, const void* token, StartedCall call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[{number, token}] = std::move(call);
}

StartedCall StartedCalls::Take(int64_t number, const void* token) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find({number, token});
  if (found == calls_.end()) return {};
  StartedCall call = std::move(found->second);
  calls_.erase(found);
  return call;
}

void StartedCalls::Drain() {
  std::vector<std::shared_ptr<SubmittedCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [start, started] : calls_) calls.push_back(started.call);
  }
  for (const auto& call : calls) (void)call->Wait();
}

void StartedCalls::SetHasWait(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  with_wait_.insert(number);
}

bool StartedCalls::HasWait(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  return with_wait_.count(number) > 0;
}

}  // namespace ring_keras
