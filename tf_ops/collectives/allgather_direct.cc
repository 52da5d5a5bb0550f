#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras {
namespace {

class AllgatherDirect : public Collective {
 public:
  AllgatherDirect(const CollectiveArguments& arguments,
                  Communicator& communicator)
      : arguments_(arguments), communicator_(communicator) {}

  Task Run(const Participants& participants) override {
    const size_t row_nbytes = RowBytes(arguments_);
    std::vector<Range> parts;
    int64_t rows = 0;
    for (const Participant& participant : participants) {
      const size_t begin = rows * row_nbytes;
      rows += participant.rows;
      parts.push_back({begin, rows * row_nbytes});
    }
    StatusOr<void*> allocated =
        arguments_.allocate_output(WithRows(arguments_, rows));
    if (!allocated.ok()) {
      communicator_.Break(allocated.status());
      co_return allocated.status();
    }
    char* output = static_cast<char*>(allocated.value());
    const void* input = arguments_.inputs[0].data;
    MessageExchange exchange(communicator_, participants.key);
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range part = parts[rank];
      exchange.Trade(rank, 0, input, parts[communicator_.rank()].size(),
                     output + part.begin, part.size());
    }
    co_await exchange.Done();
    co_return communicator_.status();
  }

 private:
  const CollectiveArguments& arguments_;
  Communicator& communicator_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllgatherDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherDirect>(arguments, communicator);
}

}  // namespace ring_keras
