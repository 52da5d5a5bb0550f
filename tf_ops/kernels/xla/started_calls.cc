#include "tf_ops/kernels/xla/started_calls.h"

#include <vector>

#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

std::shared_ptr<CallInFlight> CallInFlight::Submit(Request request,
                                                   double patience_s) {
  std::shared_ptr<CallInFlight> call(new CallInFlight);
  call->device_work_ = request.device_work;
  if (request.device_work != nullptr) {
    request.launched = [call] {
      std::lock_guard<std::mutex> lock(call->mutex_);
      call->launched_ = true;
      call->changed_.notify_all();
    };
  }
  Runtime::Get().Submit(
      std::move(request),
      [call](const Status& status) {
        std::lock_guard<std::mutex> lock(call->mutex_);
        call->ended_ = true;
        call->status_ = status;
        call->changed_.notify_all();
      },
      patience_s);
  return call;
}

Status CallInFlight::Await(void* stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return launched_ || ended_; });
  if (!status_.ok() || device_work_ == nullptr) return status_;
  return device_work_->Follow(stream);
}

void CallInFlight::AwaitEnd() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_; });
}

StartedCalls& StartedCalls::Get() {
  static StartedCalls* calls = new StartedCalls;
  return *calls;
}

void StartedCalls::Add(int64_t run, int64_t number,
                       std::shared_ptr<CallInFlight> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_[{run, number}] = std::move(call);
}

std::shared_ptr<CallInFlight> StartedCalls::Take(int64_t run, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find({run, number});
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<CallInFlight> call = std::move(found->second);
  calls_.erase(found);
  return call;
}

void StartedCalls::Drain(int64_t run) {
  std::vector<std::shared_ptr<CallInFlight>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = calls_.lower_bound({run, INT64_MIN});
    const auto end = calls_.upper_bound({run, INT64_MAX});
    for (auto it = begin; it != end; ++it) calls.push_back(it->second);
    calls_.erase(begin, end);
  }
  for (const auto& call : calls) call->AwaitEnd();
}

}  // namespace ring_keras
