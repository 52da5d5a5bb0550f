#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/scaled_reduction.h"
#include "tf_ops/collectives/scattered_parts.h"
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
        piece_nbytes_(round_nbytes_ / communicator.size() / kCacheLine *
                      kCacheLine),
        parts_(arguments, communicator.size(), piece_nbytes_) {}

  bool can_repeat() const override { return true; }

 protected:
  size_t pack_rounds() const override { return parts_.round_count(); }
  size_t max_pack_nbytes() const override {
    return pack_rounds() == 0 ? 0 : round_nbytes_;
  }
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range slice = parts_.Slice(rank, round);
      char* to = slot + rank * piece_nbytes_;
      if (rank == communicator_.rank()) {
        parts_.CopyIn(reduction_, slice, to);  // Nobody else reads it.
      } else {
        parts_.CopyIn(reduction_, slice, to, copy);
      }
    }
  }

  StatusOr<Rounds> Begin(const Participants& participants) override {
    StatusOr<void*> output =
        arguments_.allocate_output(ScatteredParts::OutputOf(
            arguments_, communicator_.size(), communicator_.rank()));
    if (!output.ok()) return output.status();
    output_ = static_cast<char*>(output.value());
    const bool pack_anew = reduction_.Begin(participants);
    return Rounds{pack_rounds(), pack_anew};
  }

  void Unpack(size_t round) override {
    const Range part = parts_.PartOf(communicator_.rank());
    const Range piece = parts_.Slice(communicator_.rank(), round);
    const void* sources[kSharedMaxRanks];
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      sources[rank] = slot(rank, round) + communicator_.rank() * piece_nbytes_;
    }
    reduction_.Combine(output_ + (piece.begin - part.begin), sources,
                       communicator_.size(), piece.size());
  }

 private:
  ScaledReduction reduction_;
  char* output_ = nullptr;
  size_t piece_nbytes_;
  ScatteredParts parts_;
};

}  // namespace

std::unique_ptr<Collective> MakeReduceScatterShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<ReduceScatterShared>(arguments, communicator);
}

}  // namespace ring_keras
