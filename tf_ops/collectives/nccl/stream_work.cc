#include "tf_ops/collectives/nccl/stream_work.h"

#include <utility>

namespace ring_keras {

StatusOr<std::shared_ptr<DeviceWork>> DeviceWork::After(int device,
                                                        void* stream) {
  auto work = nccl::StreamWork::After(device, stream);
  if (!work.ok()) return work.status();
  return std::shared_ptr<DeviceWork>(std::move(work.value()));
}

namespace nccl {

StatusOr<std::shared_ptr<StreamWork>> StreamWork::After(
    int device, cuda::StreamHandle stream) {
  cuda::EventPool& events = cuda::EventPool::Of(device);
  StatusOr<cuda::Event> ready = events.Take();
  RING_KERAS_RETURN_IF_ERROR(ready.status());
  StatusOr<cuda::Event> done = events.Take();
  RING_KERAS_RETURN_IF_ERROR(done.status());
  // The default stream is that of the thread's current device.
  if (stream == nullptr) {
    RING_KERAS_RETURN_IF_ERROR(
        cuda::ToStatus(cuda::GetRuntime().value()->SetDevice(device),
                       "making a stream's device current"));
  }
  RING_KERAS_RETURN_IF_ERROR(ready.value().Record(stream));
  return std::shared_ptr<StreamWork>(new StreamWork(
      device, stream, std::move(ready.value()), std::move(done.value())));
}

StatusOr<std::shared_ptr<StreamWork>> StreamWork::Split(
    int device, std::shared_ptr<DeviceCommunicator> part) {
  StatusOr<cuda::Event> done = cuda::EventPool::Of(device).Take();
  RING_KERAS_RETURN_IF_ERROR(done.status());
  std::shared_ptr<StreamWork> work(
      new StreamWork(device, nullptr, cuda::Event(), std::move(done.value())));
  work->is_split_ = true;
  work->part_ = std::move(part);
  return work;
}

Status StreamWork::Begin(cuda::StreamHandle stream) {
  return is_split_ ? Status::Ok() : ready_.HoldBack(stream);
}

Status StreamWork::BeginAgain(cuda::StreamHandle stream) {
  RING_KERAS_RETURN_IF_ERROR(ready_.Record(caller_));
  return ready_.HoldBack(stream);
}

Status StreamWork::End(cuda::StreamHandle stream) {
  RING_KERAS_RETURN_IF_ERROR(done_.Record(stream));
  has_end_ = true;
  return Status::Ok();
}

StatusOr<bool> StreamWork::IsDone() const {
  if (!has_end_) return true;
  return done_.IsDone();
}

}  // namespace nccl
}  // namespace ring_keras
