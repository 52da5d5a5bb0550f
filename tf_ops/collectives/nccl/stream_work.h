// DeviceWork with the collective's side of it.
#ifndef RING_KERAS_COLLECTIVES_NCCL_STREAM_WORK_H_
#define RING_KERAS_COLLECTIVES_NCCL_STREAM_WORK_H_

#include <memory>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/cuda/event.h"

namespace ring_keras::nccl {

class DeviceCommunicator;

class StreamWork final : public DeviceWork {
 public:
  // As DeviceWork::After.
  static StatusOr<std::shared_ptr<StreamWork>> After(int device,
                                                     cuda::StreamHandle stream);
  // Makes the communicator of a process set from the communicator it runs on:
  // `part`'s, or null on a rank that is not in the set. Follows no stream.
  static StatusOr<std::shared_ptr<StreamWork>> Split(
      int device, std::shared_ptr<DeviceCommunicator> part);

  // From the time of the launch on.
  Status Follow(void* stream) override { return done_.HoldBack(stream); }
  int device() const override { return device_; }
  bool is_split() const { return is_split_; }
  DeviceCommunicator* part() const { return part_.get(); }

  // What `stream` is given from here on runs after what the caller's stream had
  // been given when this was made.
  Status Begin(cuda::StreamHandle stream);
  // The same, of what the caller's stream has been given by now: memory that
  // its pool hands out may still be in use there.
  Status BeginAgain(cuda::StreamHandle stream);
  // The collective is all that `stream` has been given so far.
  Status End(cuda::StreamHandle stream);

  // Whether the device has come to the end; true if it never was given one.
  StatusOr<bool> IsDone() const;

 private:
  StreamWork(int device, cuda::StreamHandle caller, cuda::Event ready,
             cuda::Event done)
      : device_(device),
        caller_(caller),
        ready_(std::move(ready)),
        done_(std::move(done)) {}

  const int device_;
  const cuda::StreamHandle caller_;
  bool is_split_ = false;
  std::shared_ptr<DeviceCommunicator> part_;
  cuda::Event ready_;
  cuda::Event done_;
  bool has_end_ = false;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_STREAM_WORK_H_
