#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/rows.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

// A slot holds a piece for each rank, so that all ranks reduce in every round.
class ReduceScatterShared : public SharedCollective {
 public:
  ReduceScatterShared(const CollectiveArguments& arguments,
                      Communicator& communicator)
      : SharedCollective(arguments, communicator),
        reduction_(arguments),
        input_(static_cast<const char*>(arguments.inputs[0].data)),
        row_nbytes_(RowBytes(arguments)),
        rows_(RowCount(arguments.inputs[0].shape)),
        piece_nbytes_(round_nbytes_ / communicator.size() / kCacheLine *
                      kCacheLine) {}

  bool can_repeat() const override { return true; }

 protected:
  // Rank 0 has no fewer rows than any other.
  size_t pack_rounds() const override {
    return CeilDivide(PartOf(0).size(), piece_nbytes_);
  }
  size_t max_pack_nbytes() const override {
    return pack_rounds() == 0 ? 0 : round_nbytes_;
  }
  void Pack(size_t round, char* slot) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range piece = Piece(PartOf(rank), piece_nbytes_, round);
      reduction_.CopyIn(slot + rank * piece_nbytes_, input_ + piece.begin,
                        piece.size());
    }
  }

  StatusOr<Rounds> Begin(const Participants& participants) override {
    const Range own =
        ReduceScatterRows(rows_, communicator_.size(), communicator_.rank());
    StatusOr<void*> output =
        arguments_.allocate_output(WithRows(arguments_, own.size()));
    if (!output.ok()) return output.status();
    output_ = static_cast<char*>(output.value());
    const bool pack_anew = reduction_.Begin(participants);
    return Rounds{pack_rounds(), pack_anew};
  }

  void Unpack(size_t round) override {
    const Range part = PartOf(communicator_.rank());
    const Range piece = Piece(part, piece_nbytes_, round);
    const void* sources[kSharedMaxRanks];
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      sources[rank] = slot(rank, round) + communicator_.rank() * piece_nbytes_;
    }
    reduction_.Combine(output_ + (piece.begin - part.begin), sources,
                       communicator_.size(), piece.size());
  }

 private:
  Range PartOf(int rank) const {
    const Range rows = ReduceScatterRows(rows_, communicator_.size(), rank);
    return {rows.begin * row_nbytes_, rows.end * row_nbytes_};
  }

  ScaledReduction reduction_;
  const char* input_;
  char* output_ = nullptr;
  size_t row_nbytes_;
  int64_t rows_;
  size_t piece_nbytes_;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatterShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatterShared>(arguments, communicator);
}

}  // namespace ring_keras
