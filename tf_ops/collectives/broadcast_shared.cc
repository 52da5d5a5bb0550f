#include <algorithm>
#include <cstring>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

// In a round each root shows some of its tensors, and all others copy them.
class BroadcastShared : public SharedCollective {
 public:
  BroadcastShared(const CollectiveArguments& arguments,
                  Communicator& communicator)
      : SharedCollective(arguments, communicator),
        sent_(FusedTensors::ByRoot(arguments, communicator.size())) {}

  bool can_repeat() const override { return true; }

 protected:
  // A root whose tensors are shorter than another's goes on with none.
  size_t pack_rounds() const override {
    return own().nbytes() > 0 ? all_rounds() : 0;
  }
  size_t max_pack_nbytes() const override {
    return std::min(longest(), round_nbytes_);
  }
  void Pack(size_t round, char* slot, ShowingCopy& copy) override {
    const Range range = RoundBytes(own(), round);
    own().ForEach(
        range.begin, range.end,
        [&](const char* input, char* output, size_t offset, size_t nbytes) {
          copy(slot + offset, input, nbytes);
          if (output != input) std::memcpy(output, input, nbytes);
        });
  }
  StatusOr<Rounds> Begin(const Participants&) override {
    return Rounds{all_rounds()};
  }
  void Unpack(size_t round) override {
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (rank == communicator_.rank()) continue;
      const Range range = RoundBytes(sent_[rank], round);
      if (range.size() == 0) continue;
      const char* from = slot(rank, round);
      sent_[rank].ForEach(
          range.begin, range.end,
          [&](const char*, char* output, size_t offset, size_t nbytes) {
            std::memcpy(output, from + offset, nbytes);
          });
    }
  }

 private:
  const FusedTensors& own() const { return sent_[communicator_.rank()]; }
  size_t longest() const {
    size_t nbytes = 0;
    for (const FusedTensors& tensors : sent_) {
      nbytes = std::max(nbytes, tensors.nbytes());
    }
    return nbytes;
  }
  size_t all_rounds() const { return CeilDivide(longest(), round_nbytes_); }
  Range RoundBytes(const FusedTensors& tensors, size_t round) const {
    return Piece({0, tensors.nbytes()}, round_nbytes_, round);
  }

  const std::vector<FusedTensors> sent_;  // By each rank.
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcastShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<BroadcastShared>(arguments, communicator);
}

}  // namespace ring_keras
