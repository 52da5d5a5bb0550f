#include "tf_ops/runtime/submitted_call.h"

#include <utility>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras {

std::shared_ptr<SubmittedCall> SubmittedCall::Submit(
    Request request, double drive_for_s, std::shared_ptr<void> memory) {
  std::shared_ptr<SubmittedCall> call(new SubmittedCall(request));
  if (request.device_work != nullptr) {
    request.launched = [call] {
      std::lock_guard<std::mutex> lock(call->mutex_);
      call->launched_ = true;
      call->changed_.notify_all();
    };
  }
  if (request.allocate_output) {
    request.allocate_output =
        [call, allocate = request.allocate_output](const Shape& shape) {
          call->output_shape_ = shape;
          return allocate(shape);
        };
  }
  if (request.kind == CollectiveKind::kAlltoall) {
    request.received_splits = &call->received_splits_;
  }
  request.awaited_since = &call->awaited_since_;  // `done` keeps it alive.
  Runtime::Get().Submit(
      std::move(request),
      [call, memory = std::move(memory)](const Status& status) {
        std::lock_guard<std::mutex> lock(call->mutex_);
        call->done_ = true;
        call->status_ = status;
        call->changed_.notify_all();
      },
      drive_for_s);
  return call;
}

Status SubmittedCall::Follow(void* stream) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!launched_ && !done_) StampAwaited();
    WaitHandlingSignals(
        lock, changed_, [this] { return launched_ || done_; },
        communicator_id_);
    if (!status_.ok() || device_work_ == nullptr) return status_;
  }
  return device_work_->Follow(stream);
}

Status SubmittedCall::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!done_) StampAwaited();
  WaitHandlingSignals(
      lock, changed_, [this] { return done_ || is_left_; }, communicator_id_);
  if (is_left_) {
    return Status(StatusCode::kAborted, "nobody waits for it any more");
  }
  return status_;
}

void SubmittedCall::Leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_left_ = !done_;
  changed_.notify_all();
}

bool SubmittedCall::IsLeft() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_left_;
}

void SubmittedCall::StampAwaited() {
  Ticks nobody = 0;
  awaited_since_.compare_exchange_strong(nobody, Now());
}

bool SubmittedCall::IsDone() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

Shape SubmittedCall::output_shape() {
  std::lock_guard<std::mutex> lock(mutex_);
  return launched_ || done_ ? output_shape_ : Shape();
}

std::vector<int64_t> SubmittedCall::received_splits() {
  return IsDone() ? received_splits_ : std::vector<int64_t>();
}

}  // namespace ring_keras
