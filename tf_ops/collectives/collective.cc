#include "tf_ops/collectives/collective.h"

#include "tf_ops/collectives/algorithms.h"

namespace ring_keras {
namespace {

// Below these, fewer synchronisations or messages win over fewer bytes.
constexpr size_t kSharedFlatMaxBytes = 16 << 10;
constexpr size_t kDirectMaxBytes = 16 << 10;

bool UsesSharedMemory(const Communicator& communicator) {
  return communicator.size() > 1 && communicator.size() <= kSharedMaxRanks &&
         communicator.shares_memory();
}

MakeAlgorithm* PickAllreduce(const CollectiveArguments& arguments,
                             const Communicator& communicator) {
  const size_t nbytes = TotalBytes(arguments);
  if (communicator.size() == 1) return MakeAllreduceDirect;
  if (UsesSharedMemory(communicator)) {
    return communicator.size() == 2 || nbytes <= kSharedFlatMaxBytes
               ? MakeAllreduceSharedFlat
               : MakeAllreduceSharedParts;
  }
  return nbytes <= kDirectMaxBytes ? MakeAllreduceDirect : MakeAllreduceRing;
}

MakeAlgorithm* Pick(const CollectiveArguments& arguments,
                    const Communicator& communicator) {
  const bool shared = UsesSharedMemory(communicator);
  switch (arguments.kind) {
    case CollectiveKind::kAllreduce:
      return PickAllreduce(arguments, communicator);
    case CollectiveKind::kAllgather:
      return shared ? MakeAllgatherShared : MakeAllgatherDirect;
    case CollectiveKind::kBroadcast:
      return shared ? MakeBroadcastShared : MakeBroadcastChain;
    case CollectiveKind::kReduceScatter:
      return shared ? MakeReduceScatterShared : MakeReduceScatterDirect;
    case CollectiveKind::kAlltoall:
      return shared ? MakeAlltoallShared : MakeAlltoallDirect;
    case CollectiveKind::kBarrier:
      break;
  }
  return shared ? MakeBarrierShared : MakeBarrierMessages;
}

}  // namespace

std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator,
                                           uint64_t key) {
  MakeAlgorithm* make = Pick(arguments, communicator);
  if (arguments.kind == CollectiveKind::kAllreduce &&
      UsesSharedMemory(communicator)) {
    if (const auto buffers = FindSharedBuffers(arguments, communicator)) {
      return MakeAllreduceSharedBuffers(arguments, communicator, key, *buffers,
                                        make);
    }
  }
  return make(arguments, communicator, key);
}

}  // namespace ring_keras
