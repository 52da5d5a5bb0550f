#include <algorithm>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/nccl/device_collective.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras::nccl {
namespace {

class Allgather : public DeviceCollective {
 public:
  using DeviceCollective::DeviceCollective;

  Task Enqueue() override {
    const size_t row_nbytes = RowBytes(arguments());
    int64_t rows = 0;
    bool equal = true;
    for (const Participant& participant : participants()) {
      rows += participant.rows;
      equal &= participant.rows == participants()[0].rows;
    }
    StatusOr<char*> output = AllocateOutput(WithRows(arguments(), rows));
    RING_KERAS_CO_RETURN_IF_ERROR(output.status());
    if (rows * row_nbytes == 0) co_return Status::Ok();
    Task issued = device().Issue("allgather", [&](Calls& calls) {
      const void* input = arguments().inputs[0].data;
      if (equal) {
        calls.AllGather(input, output.value(),
                        participants()[0].rows * row_nbytes, kUint8);
        return;
      }
      char* to = output.value();
      for (int root = 0; root < size(); ++root) {
        const size_t nbytes = participants()[root].rows * row_nbytes;
        if (nbytes == 0) continue;
        calls.Broadcast(root == rank() ? input : to, to, nbytes, root);
        to += nbytes;
      }
    });
    co_return co_await issued;
  }
};

}  // namespace

std::unique_ptr<Collective> MakeAllgather(const CollectiveArguments& arguments,
                                          Communicator& communicator) {
  return std::make_unique<Allgather>(arguments, communicator);
}

}  // namespace ring_keras::nccl
