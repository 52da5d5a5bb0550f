#include <memory>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/rows.h"
#include "tf_ops/collectives/scaled_reduction.h"

namespace ring_keras {
namespace {

class ReduceScatterDirect : public Collective {
 public:
  ReduceScatterDirect(const CollectiveArguments& arguments,
                      Communicator& communicator)
      : arguments_(arguments),
        communicator_(communicator),
        reduction_(arguments) {}

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    const int size = communicator_.size();
    const int64_t rows = RowCount(arguments_.inputs[0].shape);
    const size_t row_nbytes = RowBytes(arguments_);
    const Range own = ReduceScatterRows(rows, size, communicator_.rank());
    StatusOr<void*> output =
        arguments_.allocate_output(WithRows(arguments_, own.size()));
    if (!output.ok()) {
      communicator_.Break(output.status());
      co_return output.status();
    }
    // The scaled input, then a place for each other rank's part of our rows.
    const size_t input_nbytes = rows * row_nbytes;
    const size_t own_nbytes = own.size() * row_nbytes;
    buffer_.reset(new char[input_nbytes + (size - 1) * own_nbytes]);
    char* input = buffer_.get();
    char* incoming = input + input_nbytes;
    reduction_.CopyIn(input, arguments_.inputs[0].data, input_nbytes);
    std::vector<const void*> sources(size);
    MessageExchange exchange(communicator_, participants.key);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == communicator_.rank()) {
        sources[rank] = input + own.begin * row_nbytes;
        continue;
      }
      const Range part = ReduceScatterRows(rows, size, rank);
      exchange.Receive(rank, 0, incoming, own_nbytes);
      exchange.Send(rank, 0, input + part.begin * row_nbytes,
                    part.size() * row_nbytes);
      sources[rank] = incoming;
      incoming += own_nbytes;
    }
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    reduction_.Combine(output.value(), sources.data(), size, own_nbytes);
    co_return Status::Ok();
  }

 private:
  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  ScaledReduction reduction_;
  std::unique_ptr<char[]> buffer_;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatterDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatterDirect>(arguments, communicator);
}

}  // namespace ring_keras
