#include <cstring>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras {
namespace {

class AllgatherMessages : public Collective {
 public:
  AllgatherMessages(const CollectiveArguments& arguments,
                    Communicator& communicator, bool around)
      : arguments_(arguments), communicator_(communicator), around_(around) {}

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
    const Range own = parts[communicator_.rank()];
    if (around_ && own.size() > 0) {
      std::memcpy(output + own.begin, input, own.size());
    }
    MessageExchange exchange(communicator_, participants.key);
    const int size = communicator_.size();
    for (int step = 0; around_ && step < size - 1; ++step) {
      // What came last goes on.
      const int at = communicator_.rank() + size;
      const Range out = parts[(at - step) % size];
      const Range in = parts[(at - step - 1) % size];
      const auto tag = static_cast<uint32_t>(step);
      exchange.Receive((at - 1) % size, tag, output + in.begin, in.size());
      exchange.Send((at + 1) % size, tag, output + out.begin, out.size());
      co_await exchange.Done();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    }
    for (int rank = 0; !around_ && rank < size; ++rank) {
      const Range part = parts[rank];
      exchange.Trade(rank, 0, input, own.size(), output + part.begin,
                     part.size());
    }
    co_await exchange.Done();
    co_return communicator_.status();
  }

 private:
  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  const bool around_;  // Else straight to each.
};

}  // namespace

std::unique_ptr<Collective> MakeAllgatherDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherMessages>(arguments, communicator, false);
}

std::unique_ptr<Collective> MakeAllgatherRing(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherMessages>(arguments, communicator, true);
}

}  // namespace ring_keras
