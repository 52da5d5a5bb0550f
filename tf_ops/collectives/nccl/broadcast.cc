#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"

namespace ring_keras::nccl {
namespace {

class Broadcast : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    if (TotalBytes(arguments()) == 0) co_return Status::Ok();
    Task issued = device().Issue("broadcast", [this](Calls& calls) {
      for (size_t i = 0; i < arguments().inputs.size(); ++i) {
        const TensorView& input = arguments().inputs[i];
        const size_t nbytes =
            ElementCount(input.shape) * SizeOf(arguments().dtype);
        if (nbytes == 0) continue;
        calls.Broadcast(input.data, arguments().outputs[i], nbytes,
                        RootOf(arguments(), i));
      }
    });
    co_return co_await issued;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(const CollectiveArguments& arguments,
                                          Communicator& communicator) {
  return std::make_unique<Broadcast>(arguments, communicator);
}

}  // namespace ring_keras::nccl
