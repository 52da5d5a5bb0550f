#include "tf_ops/kernels/xla/started_calls.h"

#include <vector>

namespace ring_keras {

StartedCalls& StartedCalls::Get() {
  static StartedCalls* calls = new StartedCalls;
  return *calls;
}

void StartedCalls::Add(int64_t run, int64_t number,
                       std::shared_ptr<SubmittedCall> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[{run, number}] = std::move(call);
}

std::shared_ptr<SubmittedCall> StartedCalls::Take(int64_t run, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find({run, number});
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<SubmittedCall> call = std::move(found->second);
  calls_.erase(found);
  return call;
}

void StartedCalls::Drain(int64_t run) {
  std::vector<std::shared_ptr<SubmittedCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = calls_.lower_bound({run, INT64_MIN});
    const auto end = calls_.upper_bound({run, INT64_MAX});
    for (auto it = begin; it != end; ++it) calls.push_back(it->second);
    calls_.erase(begin, end);
  }
  for (const auto& call : calls) (void)call->Wait();
}

}  // namespace ring_keras
