#include "tf_ops/collectives/alltoall_output.h"
#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras::nccl {
namespace {

class Alltoall : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    StatusOr<AlltoallOutput> allocated =
        AllocateAlltoallOutput(arguments(), participants(), rank());
    RING_KERAS_CO_RETURN_IF_ERROR(allocated.status());
    RING_KERAS_CO_RETURN_IF_ERROR(work().BeginAgain(device().stream()));
    const AlltoallOutput& output = allocated.value();
    const size_t row_nbytes = RowBytes(arguments());
    const TensorView& input = arguments().inputs[0];
    const std::vector<int64_t> splits =
        SplitsOrEven(arguments().splits, RowCount(input.shape), size());
    // Empty parts are left out by sender and receiver alike.
    Task issued = device().Issue("alltoall", [&](Calls& calls) {
      for (int peer = 0; peer < size(); ++peer) {
        const Range outgoing = SplitBytes(splits, row_nbytes, peer);
        const Range incoming = output.parts[peer];
        if (outgoing.size() > 0) {
          calls.Send(static_cast<const char*>(input.data) + outgoing.begin,
                     outgoing.size(), kUint8, peer);
        }
        if (incoming.size() > 0) {
          calls.Receive(output.data + incoming.begin, incoming.size(), kUint8,
                        peer);
        }
      }
    });
    co_return co_await issued;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoall(const CollectiveArguments& arguments,
                                         Communicator& communicator) {
  return std::make_unique<Alltoall>(arguments, communicator);
}

}  // namespace ring_keras::nccl
