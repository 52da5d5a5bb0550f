#include <algorithm>
#include <cstring>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/rows.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

class AllgatherShared : public SharedCollective {
 public:
  AllgatherShared(const CollectiveArguments& arguments,
                  Communicator& communicator)
      : SharedCollective(arguments, communicator),
        input_(static_cast<const char*>(arguments.inputs[0].data)),
        row_nbytes_(RowBytes(arguments)),
        nbytes_(RowCount(arguments.inputs[0].shape) * row_nbytes_) {}

 protected:
  size_t pack_rounds() const override {
    return CeilDivide(nbytes_, round_nbytes_);
  }
  size_t max_pack_nbytes() const override {
    return std::min(nbytes_, round_nbytes_);
  }
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    const Range piece = Piece({0, nbytes_}, round_nbytes_, round);
    copy(slot, input_ + piece.begin, piece.size());
  }

  StatusOr<Rounds> Begin(const Participants& participants) override {
    int64_t rows = 0;
    size_t rounds = 0;
    for (const Participant& participant : participants) {
      const size_t begin = rows * row_nbytes_;
      rows += participant.rows;
      parts_.push_back({begin, rows * row_nbytes_});
      rounds =
          std::max(rounds, CeilDivide(parts_.back().size(), round_nbytes_));
    }
    StatusOr<void*> output =
        arguments_.allocate_output(WithRows(arguments_, rows));
    if (!output.ok()) return output.status();
    output_ = static_cast<char*>(output.value());
    return Rounds{rounds};
  }

  void Unpack(size_t round) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const Range piece = Piece(parts_[rank], round_nbytes_, round);
      if (piece.size() == 0) continue;
      const char* from = rank == communicator_.rank()
                             ? input_ + (piece.begin - parts_[rank].begin)
                             : slot(rank, round);
      std::memcpy(output_ + piece.begin, from, piece.size());
    }
  }

 private:
  const char* input_;
  char* output_ = nullptr;
  size_t row_nbytes_;
  size_t nbytes_;
  std::vector<Range> parts_;  // Bytes of each rank in the output.
};

}  // namespace

std::unique_ptr<Collective> MakeAllgatherShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<AllgatherShared>(arguments, communicator);
}

}  // namespace ring_keras
