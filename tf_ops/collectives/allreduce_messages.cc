#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/task_group.h"
#include "tf_ops/collectives/wire_tensors.h"

namespace ring_keras {
namespace {

// All ranks are one lane. The data are cut into pieces, which are reduced by
// themselves, several at a time, so that a rank sends one while it packs,
// reduces or waits for another.
class AllreduceMessages : public Collective {
 public:
  AllreduceMessages(const CollectiveArguments& arguments,
                    Communicator& communicator, LanePattern* pattern)
      : communicator_(communicator),
        pattern_(pattern),
        tensors_(arguments),
        lane_{communicator, 0, std::vector<int>(communicator.size()),
              communicator.rank(), tensors_.reduction()},
        piece_nbytes_(PieceBytes()) {
    std::iota(lane_.members.begin(), lane_.members.end(), 0);
  }

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    tensors_.Begin(participants);
    lane_.key = participants.key;
    const size_t pieces = CeilDivide(tensors_.nbytes(), piece_nbytes_);
    TaskGroup under_way(communicator_);
    for (size_t piece = 0; piece < pieces; ++piece) {
      co_await communicator_.Until(
          [&] { return under_way.running() < kPiecesUnderWay; });
      if (!communicator_.status().ok()) break;
      under_way.Spawn([&] { return ReducePiece(piece); });
    }
    co_await under_way.AllEnded();
    co_return communicator_.status();
  }

 private:
  static constexpr size_t kPiecesUnderWay = 8;

  // What is packed first stays in a core's cache if it is short.
  static constexpr size_t kMostPackedBytes = size_t{256} << 10;

  size_t PieceBytes() const {
    size_t longest = communicator_.mesh().message_nbytes();
    if (!tensors_.is_in_place()) longest = std::min(longest, kMostPackedBytes);
    const size_t ranks = communicator_.size();
    return ranks * MessageBytes(tensors_.nbytes(), ranks, longest);
  }

  Task ReducePiece(size_t piece) {
    const Range range = Piece({0, tensors_.nbytes()}, piece_nbytes_, piece);
    char* data = tensors_.InPlace(range);
    const SpareMemory::Loan buffer(communicator_.spare_memory(),
                                   data == nullptr ? range.size() : 0);
    if (data == nullptr) data = buffer.get();
    tensors_.Pack(range, data);
    Task reduce =
        pattern_(lane_, data,
                 LaneChunks(range.size(), lane_.reduction.element_nbytes(),
                            lane_.size()),
                 static_cast<uint32_t>(piece) * lane_.tag_count());
    const Status status = co_await reduce;
    RING_KERAS_CO_RETURN_IF_ERROR(status);
    tensors_.Unpack(range, data);
    co_return Status::Ok();
  }

  Communicator& communicator_;
  LanePattern* pattern_;
  WireTensors tensors_;
  Lane lane_;
  size_t piece_nbytes_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduceDoubling(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceMessages>(arguments, communicator,
                                             ReduceByDoubling);
}

std::unique_ptr<Collective> MakeAllreduceParts(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceMessages>(arguments, communicator,
                                             ReduceByParts);
}

std::unique_ptr<Collective> MakeAllreduceHalving(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceMessages>(arguments, communicator,
                                             ReduceByHalving);
}

std::unique_ptr<Collective> MakeAllreduceTrees(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceMessages>(arguments, communicator,
                                             ReduceByTrees);
}

std::unique_ptr<Collective> MakeAllreduceRing(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllreduceMessages>(arguments, communicator,
                                             ReduceByRing);
}

}  // namespace ring_keras
