#include "tf_ops/collectives/algorithms.h"

namespace ring_keras {
namespace {

class BarrierMessages : public Collective {
 public:
  bool can_repeat() const override { return true; }
  Task Run(const Participants&) override { co_return Status::Ok(); }
};

// Its window has no data, only the posts of a channel.
class BarrierShared : public BarrierMessages {
 public:
  std::optional<size_t> slot_nbytes() const override { return 0; }
};

}  // namespace

std::unique_ptr<Collective> MakeBarrierMessages(const CollectiveArguments&,
                                                Communicator&) {
  return std::make_unique<BarrierMessages>();
}

std::unique_ptr<Collective> MakeBarrierShared(const CollectiveArguments&,
                                              Communicator&) {
  return std::make_unique<BarrierShared>();
}

}  // namespace ring_keras
