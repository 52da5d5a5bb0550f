#include <algorithm>
#include <cstring>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/alltoall_output.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/rows.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

// A slot holds a piece for each rank, so that all ranks copy in every round.
class AlltoallShared : public SharedCollective {
 public:
  AlltoallShared(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : SharedCollective(arguments, communicator),
        input_(static_cast<const char*>(arguments.inputs[0].data)),
        row_nbytes_(RowBytes(arguments)),
        splits_(SplitsOrEven(arguments.splits,
                             RowCount(arguments.inputs[0].shape),
                             communicator.size())),
        piece_nbytes_(round_nbytes_ / communicator.size() / kCacheLine *
                      kCacheLine) {}

 protected:
  size_t pack_rounds() const override {
    return CeilDivide(
        *std::max_element(splits_.begin(), splits_.end()) * row_nbytes_,
        piece_nbytes_);
  }
  size_t max_pack_nbytes() const override {
    return pack_rounds() == 0 ? 0 : round_nbytes_;
  }
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank == communicator_.rank()) continue;
      const Range piece = Sent(rank, round);
      copy(slot + rank * piece_nbytes_, input_ + piece.begin, piece.size());
    }
  }

  StatusOr<Rounds> Begin(const Participants& participants) override {
    StatusOr<AlltoallOutput> output =
        AllocateAlltoallOutput(arguments_, participants, communicator_.rank());
    if (!output.ok()) return output.status();
    output_ = std::move(output.value());
    // A rank may have to keep unpacking for peers after its own last piece.
    size_t rounds = 0;
    for (const Participant& participant : participants) {
      const std::vector<int64_t> splits = SplitsOrEven(
          participant.splits, participant.rows, communicator_.size());
      rounds = std::max(
          rounds, CeilDivide(*std::max_element(splits.begin(), splits.end()) *
                                 row_nbytes_,
                             piece_nbytes_));
    }
    return Rounds{rounds};
  }

  void Unpack(size_t round) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range piece = Piece(output_.parts[rank], piece_nbytes_, round);
      if (piece.size() == 0) continue;
      const char* from =
          rank == communicator_.rank()
              ? input_ + Sent(rank, round).begin
              : slot(rank, round) + communicator_.rank() * piece_nbytes_;
      std::memcpy(output_.data + piece.begin, from, piece.size());
    }
  }

 private:
  // Of the input, what goes to `rank` in a round.
  Range Sent(int rank, size_t round) const {
    return Piece(SplitBytes(splits_, row_nbytes_, rank), piece_nbytes_, round);
  }

  const char* input_;
  AlltoallOutput output_;
  size_t row_nbytes_;
  std::vector<int64_t> splits_;
  size_t piece_nbytes_;
};

}  // namespace

std::unique_ptr<Collective> MakeAlltoallShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AlltoallShared>(arguments, communicator);
}

}  // namespace ring_keras
