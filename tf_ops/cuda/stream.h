// A stream of our own on a device.
#ifndef RING_KERAS_CUDA_STREAM_H_
#define RING_KERAS_CUDA_STREAM_H_

#include <memory>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/cuda/runtime_api.h"

namespace ring_keras::cuda {

class Stream {
 public:
  // Of the device's highest priority, so that communication does not queue
  // behind compute, and independent of the legacy default stream. Makes
  // `device` the calling thread's current one.
  RING_KERAS_EXPORT static StatusOr<std::unique_ptr<Stream>> Create(int device);

  // Does not wait for what the stream was given; that runs to its end.
  RING_KERAS_EXPORT ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }

  // Blocks until the device has done all that the stream was given.
  RING_KERAS_EXPORT Status Synchronize();

 private:
  explicit Stream(StreamHandle handle) : handle_(handle) {}

  const StreamHandle handle_;
};

}  // namespace ring_keras::cuda

#endif  // RING_KERAS_CUDA_STREAM_H_
