#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/alltoall_output.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras {
namespace {

class AlltoallDirect : public Collective {
 public:
  AlltoallDirect(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : arguments_(arguments), communicator_(communicator) {}

  Task Run(const Participants& participants) override {
    StatusOr<AlltoallOutput> allocated =
        AllocateAlltoallOutput(arguments_, participants, communicator_.rank());
    if (!allocated.ok()) {
      communicator_.Break(allocated.status());
      co_return allocated.status();
    }
    const AlltoallOutput& output = allocated.value();
    const int size = communicator_.size();
    const char* input = static_cast<const char*>(arguments_.inputs[0].data);
    const std::vector<int64_t> splits = SplitsOrEven(
        arguments_.splits, RowCount(arguments_.inputs[0].shape), size);
    MessageExchange exchange(communicator_, participants.key);
    for (int rank = 0; rank < size; ++rank) {
      const Range to = SplitBytes(splits, RowBytes(arguments_), rank);
      const Range from = output.parts[rank];
      exchange.Trade(rank, 0, input + to.begin, to.size(),
                     output.data + from.begin, from.size());
    }
    co_await exchange.Done();
    co_return communicator_.status();
  }

 private:
  const CollectiveArguments& arguments_;
  Communicator& communicator_;
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoallDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AlltoallDirect>(arguments, communicator);
}

}  // namespace ring_keras
