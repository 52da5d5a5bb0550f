// What ties a collective on tensors in GPU memory to the streams of its caller.
//
// Nothing here waits for a device: a collective reads its tensors after all
// that the caller's stream was given before, and what the caller's stream is
// given later runs after the collective, if it is told to.
//
// No NCCL and no CUDA in this interface: kernels/ and bindings/ include it.
#ifndef RING_KERAS_COLLECTIVES_NCCL_DEVICE_WORK_H_
#define RING_KERAS_COLLECTIVES_NCCL_DEVICE_WORK_H_

#include <memory>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

class DeviceWork {
 public:
  // Notes what `stream`, a cudaStream_t of GPU `device`, has been given so far:
  // the collective touches its tensors only after that. Any thread. `stream`
  // outlives the collective.
  RING_KERAS_EXPORT static StatusOr<std::shared_ptr<DeviceWork>> After(
      int device, void* stream);
  virtual ~DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  // What `stream` is given from here on runs after the collective. From the
  // time of CollectiveArguments::launched on; any thread, any number of times.
  virtual Status Follow(void* stream) = 0;

  virtual int device() const = 0;

 protected:
  DeviceWork() = default;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_NCCL_DEVICE_WORK_H_
