// The completion thread's part of a communicator: it notices what NCCL finds
// out by itself, and has a thread abort, also while the launch thread is held
// up by a stream that is full.
//
// After Break() the launch thread calls NCCL no more; the handle is taken out
// under the mutex of such calls, so none is under way, and none comes later.
#include <utility>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/common/logging.h"

namespace ring_keras::nccl {

int DeviceCommunicator::AsyncError() {
  std::lock_guard<std::mutex> lock(handle_mutex_);
  if (handle_ == nullptr || broken()) return kSuccess;
  int error = kSuccess;
  const int result = api_->CommGetAsyncError(handle_, &error);
  return result == kSuccess ? error : result;
}

void DeviceCommunicator::CheckForErrors() {
  const int error = AsyncError();
  if (error == kSuccess || error == kInProgress) return;
  Break(ToStatus(error, "in the background", nullptr));
}

void DeviceCommunicator::Abort() {
  CommHandle handles[2];
  {
    std::lock_guard<std::mutex> lock(handle_mutex_);
    handles[0] = std::exchange(handle_, nullptr);
    handles[1] = std::exchange(split_off_, nullptr);
  }
  if (const int device = device_; device != kNoDevice) {
    cuda::GetRuntime().value()->SetDevice(device);
  }
  // Not under the mutex: it may take long, and AsyncError() must not.
  for (CommHandle handle : handles) {
    if (handle == nullptr) continue;
    const int result = api_->CommAbort(handle);
    if (result != kSuccess && result != kInProgress) {
      Log(LogLevel::kWarning,
          ToStatus(result, "aborting a communicator", nullptr).message());
    }
  }
  aborted_.store(true);
}

}  // namespace ring_keras::nccl
