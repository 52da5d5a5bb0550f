#include "tf_ops/cuda/stream.h"

namespace ring_keras::cuda {

StatusOr<std::unique_ptr<Stream>> Stream::Create(int device) {
  StatusOr<const RuntimeApi*> runtime = GetRuntime();
  if (!runtime.ok()) return runtime.status();
  const RuntimeApi& api = *runtime.value();
  RING_KERAS_RETURN_IF_ERROR(
      ToStatus(api.SetDevice(device), "making a stream's device current"));
  int least = 0;
  int greatest = 0;
  RING_KERAS_RETURN_IF_ERROR(
      ToStatus(api.DeviceGetStreamPriorityRange(&least, &greatest),
               "asking for the priorities of streams"));
  StreamHandle handle = nullptr;
  RING_KERAS_RETURN_IF_ERROR(ToStatus(
      api.StreamCreateWithPriority(&handle, kStreamNonBlocking, greatest),
      "making a stream"));
  return std::unique_ptr<Stream>(new Stream(handle));
}

Stream::~Stream() { GetRuntime().value()->StreamDestroy(handle_); }

Status Stream::Synchronize() {
  return ToStatus(GetRuntime().value()->StreamSynchronize(handle_),
                  "waiting for a stream");
}

}  // namespace ring_keras::cuda
