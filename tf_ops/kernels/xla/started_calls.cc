#include "tf_ops/kernels/xla/started_calls.h"

#include <vector>

namespace ring_keras {

StartedCalls& StartedCalls::Get() {
  static StartedCalls* calls = new StartedCalls;
  return *calls;
}

void StartedCalls::Add(int64_t number, const void* token,
                       std::shared_ptr<SubmittedCall> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[{number, token}] = std::move(call);
}

std::shared_ptr<SubmittedCall> StartedCalls::Take(int64_t number,
                                                  const void* token) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find({number, token});
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<SubmittedCall> call = std::move(found->second);
  calls_.erase(found);
  return call;
}

void StartedCalls::Drain() {
  std::vector<std::shared_ptr<SubmittedCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [start, call] : calls_) calls.push_back(call);
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
