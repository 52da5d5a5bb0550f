#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/fused_tensors.h"
#include "tf_ops/collectives/host_chain.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/task_group.h"

namespace ring_keras {
namespace {

// A chain from each root through all ranks, all at once.
class BroadcastChain : public Collective {
 public:
  BroadcastChain(const CollectiveArguments& arguments,
                 Communicator& communicator)
      : communicator_(communicator),
        sent_(FusedTensors::ByRoot(arguments, communicator.size())),
        chain_(communicator) {}

  bool can_repeat() const override { return true; }

  Task Run(const Participants& participants) override {
    TaskGroup chains(communicator_);
    uint32_t tag = 0;
    for (int root = 0; root < communicator_.size(); ++root) {
      const size_t pieces = CeilDivide(sent_[root].nbytes(), kPieceBytes);
      if (pieces == 0) continue;
      chains.Spawn([&] { return RunChain(participants.key, root, tag); });
      tag += static_cast<uint32_t>(pieces);
    }
    co_await chains.AllEnded();
    co_return communicator_.status();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;

  Task RunChain(uint64_t key, int root, uint32_t tag) {
    const FusedTensors& tensors = sent_[root];
    const std::optional<int> previous =
        chain_.Previous(root, communicator_.rank());
    const std::optional<int> next = chain_.Next(root, communicator_.rank());
    const size_t nbytes = tensors.nbytes();
    const SpareMemory::Loan buffer(communicator_.spare_memory(), nbytes);
    char* data = buffer.get();
    if (!previous) {
      tensors.ForEach(
          0, nbytes,
          [&](const char* input, char* output, size_t offset, size_t length) {
            std::memcpy(data + offset, input, length);
            if (output != input) std::memcpy(output, input, length);
          });
    }
    MessageExchange sends(communicator_, key);
    MessageExchange receives(communicator_, key);
    for (size_t begin = 0; begin < nbytes; begin += kPieceBytes, ++tag) {
      const size_t length = std::min(kPieceBytes, nbytes - begin);
      if (previous) {
        receives.Receive(*previous, tag, data + begin, length);
        co_await receives.Done();
        if (!communicator_.status().ok()) break;
      }
      if (next) sends.Send(*next, tag, data + begin, length);
    }
    co_await sends.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(communicator_.status());
    if (previous) {
      tensors.ForEach(
          0, nbytes,
          [&](const char*, char* output, size_t offset, size_t length) {
            std::memcpy(output, data + offset, length);
          });
    }
    co_return Status::Ok();
  }

  Communicator& communicator_;
  const std::vector<FusedTensors> sent_;  // By each rank.
  const HostChain chain_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcastChain(
    const CollectiveArguments& arguments, Communicator& communicator) {
  return std::make_unique<BroadcastChain>(arguments, communicator);
}

}  // namespace ring_keras
