#include <algorithm>
#include <cstdint>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/message_exchange.h"

namespace ring_keras {
namespace {

// Every rank has met the same collectives, so who stood in for the fewest has
// brought data to the most, and was still there when the others had joined. The
// highest of several, which all ended together.
class JoinMessages : public Collective {
 public:
  JoinMessages(const CollectiveArguments& arguments, Communicator& communicator)
      : arguments_(arguments), communicator_(communicator) {}

  Task Run(const Participants& participants) override {
    // So that all collectives have ended, on every rank, when a join has: a
    // rank that leaves the job now leaves no peer without its data.
    co_await communicator_.Until(
        [this] { return arguments_.made_up_under_way == 0; });
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    const int64_t own = arguments_.made_up;
    std::vector<int64_t> all(communicator_.size());
    MessageExchange exchange(communicator_, participants.key);
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      exchange.Trade(rank, 0, &own, sizeof(own), &all[rank], sizeof(own));
    }
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    const auto last = std::min_element(all.rbegin(), all.rend());
    *arguments_.last_joined = communicator_.ranks()[all.rend() - last - 1];
    co_return Status::Ok();
  }

 private:
  const CollectiveArguments& arguments_;
  Communicator& communicator_;
};

}  // namespace

std::unique_ptr<Collective> MakeJoin(const CollectiveArguments& arguments,
                                     Communicator& communicator) {
  return std::make_unique<JoinMessages>(arguments, communicator);
}

}  // namespace ring_keras
