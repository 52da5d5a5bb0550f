#include <cstring>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/shared_collective.h"

namespace ring_keras {
namespace {

class BroadcastShared : public SharedCollective {
 public:
  BroadcastShared(const CollectiveArguments& arguments,
                  Communicator& communicator)
      : SharedCollective(arguments, communicator), tensors_(arguments) {}

  bool can_repeat() const override { return true; }

 protected:
  size_t pack_rounds() const override { return is_root() ? all_rounds() : 0; }
  size_t max_pack_nbytes() const override { return RoundBytes(0).size(); }
  void Pack(size_t round, char* slot) override {
    const Range range = RoundBytes(round);
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char* input, char* output, size_t offset, size_t nbytes) {
          std::memcpy(slot + offset, input, nbytes);
          if (output != input) std::memcpy(output, input, nbytes);
        });
  }
  StatusOr<Rounds> Begin(const Participants&) override {
    return Rounds{all_rounds()};
  }
  void Unpack(size_t round) override {
    if (is_root()) return;
    const Range range = RoundBytes(round);
    const char* from = slot(arguments_.root, round);
    tensors_.ForEach(
        range.begin, range.end,
        [&](const char*, char* output, size_t offset, size_t nbytes) {
          std::memcpy(output, from + offset, nbytes);
        });
  }

 private:
  bool is_root() const { return communicator_.rank() == arguments_.root; }
  size_t all_rounds() const {
    return CeilDivide(tensors_.nbytes(), round_nbytes_);
  }
  Range RoundBytes(size_t round) const {
    return Piece({0, tensors_.nbytes()}, round_nbytes_, round);
  }

  FusedTensors tensors_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcastShared(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<BroadcastShared>(arguments, communicator);
}

}  // namespace ring_keras
