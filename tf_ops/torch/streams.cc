#include "tf_ops/torch/streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>

namespace ring_keras::torch_backend {
namespace {

const c10::impl::DeviceGuardImplInterface& GuardOf(c10::Device device) {
  return *c10::impl::getDeviceGuardImpl(device.type());
}

// One for each device, of the highest priority, as are the engine's. Others may
// get the same from torch's pool: all that it waits for has been launched.
c10::Stream AfterStreamOf(c10::Device device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<c10::DeviceIndex, c10::Stream>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = streams->find(device.index());
  if (found != streams->end()) return found->second;
  const c10::Stream stream =
      GuardOf(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  return streams->emplace(device.index(), stream).first->second;
}

}  // namespace

c10::Stream CurrentStream(c10::Device device) {
  return GuardOf(device).getStream(device);
}

Streams::Streams(c10::Device device)
    : caller_(CurrentStream(device)), after_(AfterStreamOf(device)) {
  TORCH_CHECK_VALUE(
      !GuardOf(device).isStreamCapturing(caller_),
      "[RK671] a collective of the back end ring cannot be captured into a "
      "CUDA graph: the ranks agree on each by way of their hosts. Begin it "
      "outside of torch.cuda.graph, and leave out mode=\"reduce-overhead\" of "
      "torch.compile.");
}

StatusOr<std::shared_ptr<DeviceWork>> Streams::Begin() const {
  return DeviceWork::After(device().index(), caller_.native_handle());
}

Status Streams::Follow(DeviceWork& work) const {
  return work.Follow(after_.native_handle());
}

void Streams::Use(const std::vector<at::Tensor>& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    GuardOf(device()).recordDataPtrOnStream(tensor.storage().data_ptr(),
                                            after_);
  }
}

}  // namespace ring_keras::torch_backend
