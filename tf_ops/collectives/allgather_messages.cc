// Where ranks do not all share memory. How many rows each has goes with its
// announcement, or its post in a channel, so that the uses of a name can share
// one whatever they gather.
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/circle.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/rows.h"

namespace ring_keras {
namespace {

std::string EncodeRows(int64_t rows) {
  return std::string(reinterpret_cast<const char*>(&rows), sizeof(rows));
}

class AllgatherMessages : public Collective {
 public:
  AllgatherMessages(const CollectiveArguments& arguments,
                    Communicator& communicator, bool to_each)
      : arguments_(arguments), communicator_(communicator), to_each_(to_each) {}

  bool can_repeat() const override { return true; }
  std::string Payload() override {
    return EncodeRows(RowCount(arguments_.inputs[0].shape));
  }

  Task Run(const Participants& participants) override {
    const Status placed = Place(participants);
    if (!placed.ok()) {
      communicator_.Break(placed);
      co_return placed;
    }
    const Range own = parts_[communicator_.rank()];
    if (own.size() > 0) {
      std::memcpy(output_ + own.begin, arguments_.inputs[0].data, own.size());
    }
    MessageExchange exchange(communicator_, participants.key);
    if (to_each_) {
      Task task = SendToEach(exchange);
      co_return co_await task;
    }
    // As for an allreduce: where messages are long enough, neighbours alone
    // talk to each other. The ranks of a host share its link, and all but the
    // ring takes each of them across it.
    const Thresholds thresholds(communicator_.tuning(),
                                communicator_.hosts().size());
    Task task = parts_.back().end <= thresholds.halving_max_bytes
                    ? SendAcross(exchange)
                    : SendAround(exchange);
    co_return co_await task;
  }

 private:
  // Finds out where the rows of each rank go, and gets memory for all.
  Status Place(const Participants& participants) {
    const size_t row_nbytes = RowBytes(arguments_);
    int64_t rows = 0;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const std::string_view said = participants[rank].payload;
      int64_t its_rows = -1;
      if (said.size() == sizeof(its_rows)) {
        std::memcpy(&its_rows, said.data(), sizeof(its_rows));
      }
      if (its_rows < 0) {
        return Status(StatusCode::kInternal, ErrorCode::kOtherVersion,
                      StrCat("rank ", communicator_.ranks()[rank],
                             " did not say how many rows it has. Is the same "
                             "ring_keras installed on every host?"));
      }
      const size_t begin = rows * row_nbytes;
      rows += its_rows;
      parts_.push_back({begin, rows * row_nbytes});
    }
    StatusOr<void*> output =
        arguments_.allocate_output(WithRows(arguments_, rows));
    RING_KERAS_RETURN_IF_ERROR(output.status());
    output_ = static_cast<char*>(output.value());
    return Status::Ok();
  }

  Task SendToEach(MessageExchange& exchange) {
    const Range own = parts_[communicator_.rank()];
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank == communicator_.rank()) continue;
      const Range part = parts_[rank];
      exchange.Receive(rank, 0, output_ + part.begin, part.size());
      exchange.Send(rank, 0, output_ + own.begin, own.size());
    }
    co_await exchange.Done();
    co_return communicator_.status();
  }

  // Each rank gets from one that is farther and farther on what that knows.
  Task SendAcross(MessageExchange& exchange) {
    const Circle circle(communicator_.size());
    const int own = communicator_.rank();
    uint32_t tag = 0;
    for (int trip = 0; trip < circle.trips(); ++trip) {
      const int distance = circle.Distance(trip);
      const auto in = circle.Members(own + distance, circle.Count(trip));
      const auto out = circle.Members(own, circle.Count(trip));
      for (int i = 0; i < 2; ++i, ++tag) {
        const Range coming = BytesOf(in[i]);
        const Range going = BytesOf(out[i]);
        exchange.Receive(circle.At(own, distance), tag, output_ + coming.begin,
                         coming.size());
        exchange.Send(circle.At(own, -distance), tag, output_ + going.begin,
                      going.size());
      }
      co_await exchange.Done();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    }
    co_return Status::Ok();
  }

  // What has come from one neighbour goes on to the other.
  Task SendAround(MessageExchange& exchange) {
    const int size = communicator_.size();
    const int at = communicator_.rank() + size;
    for (int step = 0; step < size - 1; ++step) {
      const Range out = parts_[(at - step) % size];
      const Range in = parts_[(at - step - 1) % size];
      const auto tag = static_cast<uint32_t>(step);
      exchange.Receive((at - 1) % size, tag, output_ + in.begin, in.size());
      exchange.Send((at + 1) % size, tag, output_ + out.begin, out.size());
      co_await exchange.Done();
      RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    }
    co_return Status::Ok();
  }

  Range BytesOf(Range ranks) const {
    if (ranks.size() == 0) return {};
    return {parts_[ranks.begin].begin, parts_[ranks.end - 1].end};
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  const bool to_each_;        // Else by way of others.
  std::vector<Range> parts_;  // Bytes of each rank in the output.
  char* output_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> MakeAllgatherDirect(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherMessages>(arguments, communicator, true);
}

std::unique_ptr<Collective> MakeAllgatherByOthers(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherMessages>(arguments, communicator, false);
}

}  // namespace ring_keras
