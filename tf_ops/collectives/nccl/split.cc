#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"

namespace ring_keras::nccl {
namespace {

class Split : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    Task split = device().Split(work().part());
    co_return co_await split;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeSplit(const CollectiveArguments& arguments,
                                      Communicator& communicator) {
  return std::make_unique<Split>(arguments, communicator);
}

}  // namespace ring_keras::nccl
