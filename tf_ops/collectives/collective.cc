#include "tf_ops/collectives/collective.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/collectives/pattern_choice.h"

namespace ring_keras {
namespace {

bool UsesSharedMemory(const Communicator& communicator) {
  return communicator.size() > 1 && communicator.size() <= kSharedMaxRanks &&
         communicator.shares_memory();
}

// Several hosts, with several ranks on some.
bool HasHostsOfSeveral(const Communicator& communicator) {
  const size_t hosts = communicator.hosts().size();
  return hosts > 1 && hosts < static_cast<size_t>(communicator.size());
}

constexpr std::pair<LanePattern*, MakeAlgorithm*> kOfOneLane[] = {
    {ReduceByDoubling, MakeAllreduceDoubling},
    {ReduceByParts, MakeAllreduceParts},
    {ReduceByHalving, MakeAllreduceHalving},
    {ReduceByTrees, MakeAllreduceTrees},
    {ReduceByRing, MakeAllreduceRing},
};

MakeAlgorithm* PickAllreduce(const CollectiveArguments& arguments,
                             const Communicator& communicator) {
  if (communicator.size() == 1) return MakeAllreduceAlone;
  const size_t nbytes = TotalBytes(arguments);
  const Thresholds thresholds(communicator.tuning(), communicator.size());
  if (UsesSharedMemory(communicator)) {
    return communicator.size() == 2 ||
                   nbytes <= thresholds.shared_flat_max_bytes
               ? MakeAllreduceSharedFlat
               : MakeAllreduceSharedParts;
  }
  // The payload travels in the announcement.
  if (nbytes <=
      std::min(thresholds.direct_max_bytes, Collective::kMaxPayloadBytes)) {
    return MakeAllreduceDirect;
  }
  if (HasHostsOfSeveral(communicator)) return MakeAllreduceHierarchical;
  LanePattern* pattern = PickPattern(
      communicator.tuning(), arguments.wire_dtype.value_or(arguments.dtype),
      communicator.size(), nbytes, communicator.mesh().message_nbytes());
  return std::find_if(
             std::begin(kOfOneLane), std::end(kOfOneLane),
             [pattern](const auto& one) { return one.first == pattern; })
      ->second;
}

MakeAlgorithm* Pick(const CollectiveArguments& arguments,
                    const Communicator& communicator) {
  const bool shared = UsesSharedMemory(communicator);
  switch (arguments.kind) {
    case CollectiveKind::kAllreduce:
      return PickAllreduce(arguments, communicator);
    case CollectiveKind::kAllgather:
      if (shared) return MakeAllgatherShared;
      return communicator.connects_all() ? MakeAllgatherDirect
                                         : MakeAllgatherByOthers;
    case CollectiveKind::kBroadcast:
      return shared ? MakeBroadcastShared : MakeBroadcastChain;
    case CollectiveKind::kReduceScatter:
      if (shared) return MakeReduceScatterShared;
      return HasHostsOfSeveral(communicator) ? MakeReduceScatterHierarchical
                                             : MakeReduceScatterMessages;
    case CollectiveKind::kAlltoall:
      return shared ? MakeAlltoallShared : MakeAlltoallDirect;
    case CollectiveKind::kJoin:
      return MakeJoin;
    case CollectiveKind::kBarrier:
      break;
  }
  return shared ? MakeBarrierShared : MakeBarrierMessages;
}

// What people read of each. On a device each kind has one.
constexpr std::pair<MakeAlgorithm*, const char*> kNames[] = {
    {MakeAllreduceAlone, "alone"},
    {MakeAllreduceSharedFlat, "shared_flat"},
    {MakeAllreduceSharedParts, "shared_parts"},
    {MakeAllreduceDirect, "direct"},
    {MakeAllreduceDoubling, "doubling"},
    {MakeAllreduceParts, "parts"},
    {MakeAllreduceRing, "ring"},
    {MakeAllreduceHalving, "halving"},
    {MakeAllreduceTrees, "trees"},
    {MakeAllreduceHierarchical, "hierarchical"},
    {MakeAllgatherShared, "shared"},
    {MakeAllgatherDirect, "direct"},
    {MakeBroadcastShared, "shared"},
    {MakeBroadcastChain, "chain"},
    {MakeReduceScatterShared, "shared"},
    {MakeReduceScatterMessages, "messages"},
    {MakeReduceScatterHierarchical, "hierarchical"},
    {MakeAlltoallShared, "shared"},
    {MakeAlltoallDirect, "direct"},
    {MakeBarrierShared, "shared"},
    {MakeBarrierMessages, "messages"},
    {MakeJoin, "join"},
    {MakeAllgatherByOthers, "by_others"},
};
constexpr size_t kSharedBuffersNumber = std::size(kNames);
constexpr size_t kSharedTensorsNumber = kSharedBuffersNumber + 1;
constexpr size_t kFirstDeviceNumber = kSharedTensorsNumber + 1;
static_assert(kFirstDeviceNumber + kCollectiveKindCount < kAlgorithmCount);

AlgorithmName NameOf(MakeAlgorithm* make) {
  const auto found =
      std::find_if(std::begin(kNames), std::end(kNames),
                   [make](const auto& named) { return named.first == make; });
  return {static_cast<uint8_t>(found - std::begin(kNames)), found->second};
}

std::unique_ptr<Collective> Named(std::unique_ptr<Collective> collective,
                                  const AlgorithmName& name) {
  collective->set_algorithm(name);
  return collective;
}

}  // namespace

std::unique_ptr<Collective> MakeCollective(const CollectiveArguments& arguments,
                                           Communicator& communicator) {
  if (arguments.device_work != nullptr) {
    const auto number = static_cast<uint8_t>(
        kFirstDeviceNumber + static_cast<size_t>(arguments.kind));
    return Named(nccl::MakeCollective(arguments, communicator),
                 {number, "nccl"});
  }
  MakeAlgorithm* make = Pick(arguments, communicator);
  const bool shared = UsesSharedMemory(communicator);
  if (arguments.kind == CollectiveKind::kBroadcast && shared) {
    if (auto places = FindSentPlaces(arguments, communicator)) {
      return Named(MakeBroadcastSharedTensors(arguments, communicator,
                                              std::move(*places), make),
                   {kSharedTensorsNumber, "shared_tensors"});
    }
  }
  if (arguments.kind == CollectiveKind::kAllreduce && shared) {
    if (const auto buffers = FindSharedBuffers(arguments, communicator)) {
      return Named(
          MakeAllreduceSharedBuffers(arguments, communicator, *buffers, make),
          {kSharedBuffersNumber, "shared_buffers"});
    }
    if (auto places = FindTensorPlaces(arguments, communicator)) {
      return Named(MakeAllreduceSharedTensors(arguments, communicator,
                                              std::move(*places), make),
                   {kSharedTensorsNumber, "shared_tensors"});
    }
  }
  return Named(make(arguments, communicator), NameOf(make));
}

}  // namespace ring_keras
