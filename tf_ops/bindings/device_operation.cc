#include "tf_ops/bindings/device_operation.h"

#include <utility>

#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

StatusOr<std::shared_ptr<DeviceOperation>> DeviceOperation::Submit(
    Request request, int device, void* stream) {
  auto work = DeviceWork::After(device, stream);
  if (!work.ok()) {
    request.able = work.status();  // So that the peers do not wait.
    return Runtime::Get().Run(std::move(request));
  }
  auto operation = std::make_shared<DeviceOperation>();
  operation->work_ = std::move(work.value());
  const std::shared_ptr<State> state = operation->state_;
  request.device_work = operation->work_;
  if (request.kind == CollectiveKind::kAlltoall) {
    request.received_splits = &state->received_splits;
  }
  request.launched = [state] {
    std::lock_guard lock(state->mutex);
    state->launched = true;
    state->changed.notify_all();
  };
  Runtime::Get().Submit(std::move(request), [state](const Status& status) {
    std::lock_guard lock(state->mutex);
    state->done = true;
    state->status = status;
    state->changed.notify_all();
  });
  return operation;
}

Status DeviceOperation::Follow(void* stream) {
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock,
                         [this] { return state_->launched || state_->done; });
    if (state_->done && !state_->status.ok()) return state_->status;
  }
  return work_->Follow(stream);
}

Status DeviceOperation::Wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  return state_->status;
}

bool DeviceOperation::IsDone() {
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

}  // namespace ring_keras
