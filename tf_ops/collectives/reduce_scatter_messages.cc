#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/pattern_choice.h"
#include "tf_ops/collectives/scattered_parts.h"
#include "tf_ops/collectives/task_group.h"

namespace ring_keras {
namespace {

// All ranks are one lane, which stops at half. A round is a slice of each
// rank's part, one behind the other: a chunk for each. Several rounds are under
// way, so that a rank sends in one while it packs, reduces or waits in another.
class ReduceScatterMessages : public Collective {
 public:
  ReduceScatterMessages(const CollectiveArguments& arguments,
                        Communicator& communicator)
      : arguments_(arguments),
        communicator_(communicator),
        reduction_(arguments),
        parts_(arguments, communicator.size(), Transport::kMessageBytes),
        lane_{communicator,
              0,
              std::vector<int>(communicator.size()),
              communicator.rank(),
              reduction_,
              /*scatters=*/true},
        pattern_(PickHalfPattern(communicator.tuning(), arguments.dtype,
                                 communicator.size(), TotalBytes(arguments))) {
    std::iota(lane_.members.begin(), lane_.members.end(), 0);
  }

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    reduction_.Begin(participants);
    lane_.key = participants.key;
    StatusOr<void*> output =
        arguments_.allocate_output(ScatteredParts::OutputOf(
            arguments_, communicator_.size(), communicator_.rank()));
    if (!output.ok()) {
      communicator_.Break(output.status());
      co_return output.status();
    }
    output_ = static_cast<char*>(output.value());
    TaskGroup under_way(communicator_);
    for (size_t round = 0; round < parts_.round_count(); ++round) {
      co_await communicator_.Until(
          [&] { return under_way.running() < kRoundsUnderWay; });
      if (!communicator_.status().ok()) break;
      under_way.Spawn([&] { return RunRound(round); });
    }
    co_await under_way.AllEnded();
    co_return communicator_.status();
  }

 private:
  static constexpr size_t kRoundsUnderWay = 8;

  Task RunRound(size_t round) {
    std::vector<size_t> ends;
    size_t end = 0;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      ends.push_back(end += parts_.Slice(rank, round).size());
    }
    const LaneChunks chunks(std::move(ends));
    const SpareMemory::Loan data(communicator_.spare_memory(), chunks.nbytes());
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      parts_.CopyIn(reduction_, parts_.Slice(rank, round),
                    data.get() + chunks(rank).begin);
    }
    Task reduce = pattern_(lane_, data.get(), chunks,
                           static_cast<uint32_t>(round) * lane_.tag_count());
    const Status status = co_await reduce;
    RING_KERAS_CO_RETURN_IF_ERROR(status);
    const int rank = communicator_.rank();
    const size_t at =
        parts_.Slice(rank, round).begin - parts_.PartOf(rank).begin;
    const Range own = chunks(rank);
    if (own.size() > 0) {
      std::memcpy(output_ + at, data.get() + own.begin, own.size());
    }
    co_return Status::Ok();
  }

  const CollectiveArguments& arguments_;
  Communicator& communicator_;
  ScaledReduction reduction_;
  ScatteredParts parts_;
  Lane lane_;
  LanePattern* pattern_;
  char* output_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatterMessages(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatterMessages>(arguments, communicator);
}

}  // namespace ring_keras
