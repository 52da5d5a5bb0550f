#include "tf_ops/collectives/nccl/device_collective.h"

#include <utility>

#include "tf_ops/collectives/nccl/launcher.h"
#include "tf_ops/common/deadline.h"
#include "tf_ops/common/store.h"

namespace ring_keras::nccl {

DeviceCollective::DeviceCollective(const CollectiveArguments& arguments,
                                   Communicator& communicator)
    : Launch(*communicator.device(),
             static_cast<StreamWork&>(*arguments.device_work),
             arguments.launched),
      arguments_(arguments),
      communicator_(communicator),
      device_(*communicator.device()) {}

std::string DeviceCollective::Payload() { return device_.IdForPeers(); }

Task DeviceCollective::Run(const Participants& participants) {
  participants_ = &participants;
  device_.launcher().Post(this);
  return Reach(State::kLaunched);
}

Task DeviceCollective::Finish() { return Reach(State::kEnded); }

Task DeviceCollective::Reach(State wanted) {
  co_await communicator_.Until([this, wanted] { return state() >= wanted; });
  if (!communicator_.status().ok()) {
    device_.Break(communicator_.status());
    co_await communicator_.UntilAlways(
        [this] { return state() == State::kEnded; });
    co_return communicator_.status();
  }
  if (state() != State::kEnded || outcome().ok()) co_return Status::Ok();
  if (outcome().code() != StatusCode::kPeerLost) co_return outcome();
  // NCCL may notice that a rank died before the store says so.
  const Deadline verdict = Deadline::After(kStoreVerdictS);
  co_await communicator_.Until([&] { return verdict.Expired(); });
  RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
  // Not the store's word, so the other ranks are to be told.
  co_return Status(StatusCode::kInternal, outcome().error_code(),
                   outcome().message());
}

StatusOr<char*> DeviceCollective::AllocateOutput(const Shape& shape) {
  StatusOr<void*> output = arguments_.allocate_output(shape);
  RING_KERAS_RETURN_IF_ERROR(output.status());
  RING_KERAS_RETURN_IF_ERROR(work().BeginAgain(device_.stream()));
  return static_cast<char*>(output.value());
}

Status DeviceCollective::CopyScaled(DataType from, DataType to, double scale,
                                    std::vector<cuda::Segment> segments) {
  std::erase_if(segments, [](const cuda::Segment& segment) {
    return segment.count == 0;
  });
  if (segments.empty()) return Status::Ok();
  return cuda::CopyScaled(device_.device(), device_.stream(), from, to, scale,
                          segments);
}

Status DeviceCollective::CopyBytes(void* to, const void* from, size_t nbytes) {
  if (nbytes == 0 || to == from) return Status::Ok();
  return cuda::ToStatus(
      cuda::GetRuntime().value()->MemcpyAsync(
          to, from, nbytes, cuda::kMemcpyDeviceToDevice, device_.stream()),
      "copying a tensor on the GPU");
}

}  // namespace ring_keras::nccl
