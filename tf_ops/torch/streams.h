// torch's streams on a GPU, for collectives on tensors there.
//
// By torch's generic interfaces alone, so that one library serves torch with
// CUDA and without.
#ifndef RING_KERAS_TORCH_STREAMS_H_
#define RING_KERAS_TORCH_STREAMS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/common/status.h"

namespace ring_keras::torch_backend {

class Streams {
 public:
  // Of a call that this thread makes now on tensors of `device`. Throws if its
  // current stream is captured into a graph.
  explicit Streams(c10::Device device);

  c10::Device device() const { return caller_.device(); }
  // The calling thread's current stream. What it has been given so far writes
  // what collectives read, and may still use the memory for results.
  const c10::Stream& caller() const { return caller_; }
  // What follows collectives is done in this one, the same for all calls.
  const c10::Stream& after() const { return after_; }

  // For a collective that begins when the device has come to what caller() has
  // been given so far.
  StatusOr<std::shared_ptr<DeviceWork>> Begin() const;
  // What after() is given from here on follows the collective, which has been
  // launched.
  Status Follow(DeviceWork& work) const;
  // Nobody gets the memory of these before the device has come to what after()
  // has been given by the time that they are freed.
  void Use(const std::vector<at::Tensor>& tensors) const;

 private:
  c10::Stream caller_;
  c10::Stream after_;
};

// What the calling thread's current stream of `device` is.
c10::Stream CurrentStream(c10::Device device);

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_STREAMS_H_
