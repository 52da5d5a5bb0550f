// Every algorithm there is. collective.cc picks one for each call; a new one is
// a new file, a line here and a line there.
//
// "shared" algorithms need communicator.shares_memory(); the others send
// messages over whatever transport each pair of ranks has, and also serve a
// communicator of one rank. All give every rank the same bits, and the same
// bits again when repeated.
#ifndef RING_KERAS_COLLECTIVES_ALGORITHMS_H_
#define RING_KERAS_COLLECTIVES_ALGORITHMS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tf_ops/collectives/collective.h"

namespace ring_keras {

// Of a communicator that the "shared" algorithms serve: they cut slots of
// windows into a piece for each rank.
constexpr int kSharedMaxRanks = 256;

using MakeAlgorithm = std::unique_ptr<Collective>(
    const CollectiveArguments& arguments, Communicator& communicator);

// Each rank reads all ranks' data and reduces everything itself: one
// synchronisation, size x nbytes read per rank. For 2 ranks, or few bytes.
MakeAlgorithm MakeAllreduceSharedFlat;
// Each rank reduces a part, then copies the other parts: two synchronisations
// a round, 2 x nbytes read per rank whatever the size.
MakeAlgorithm MakeAllreduceSharedParts;

// Offsets in an arena.
struct TensorPlace {
  uint64_t input = 0;
  uint64_t output = 0;
};

// Where this rank's one tensor lies among the shared buffers.
struct SharedBuffers {
  size_t nbytes = 0;
  uint64_t input_offset = WindowPost::kNowhere;
  uint64_t output_offset = WindowPost::kNowhere;
};
// Nothing if it lies in private memory, must be scaled first, or has its output
// on pages with other data.
std::optional<SharedBuffers> FindSharedBuffers(
    const CollectiveArguments& arguments, Communicator& communicator);
// Where every rank's tensor lies in shared buffers: each rank reduces a part of
// them in place, for all ranks; one synchronisation before, one after, nothing
// staged. Becomes `staged`, one of the two above and the same on every rank, if
// a peer's tensor lies elsewhere.
std::unique_ptr<Collective> MakeAllreduceSharedBuffers(
    const CollectiveArguments& arguments, Communicator& communicator,
    const SharedBuffers& buffers, MakeAlgorithm* staged);

// Where this rank's tensors lie in its arena, those that are large: nothing if
// one lies elsewhere, must be scaled first, or has its output on pages with
// other data, or if a rank has no arena that this one can reach.
using TensorPlaces = std::vector<TensorPlace>;
std::optional<TensorPlaces> FindTensorPlaces(
    const CollectiveArguments& arguments, const Communicator& communicator);
// Where every rank's large tensors lie in its arena: each rank reduces a part
// of them in place, for all ranks. Only what is small is staged. Becomes
// `staged`, as above, if a peer's tensors lie elsewhere.
std::unique_ptr<Collective> MakeAllreduceSharedTensors(
    const CollectiveArguments& arguments, Communicator& communicator,
    TensorPlaces places, MakeAlgorithm* staged);

// For a communicator of one rank.
MakeAlgorithm MakeAllreduceAlone;
// Announcements carry the data: one trip, (size - 1) x nbytes sent per rank.
// For what a payload holds.
MakeAlgorithm MakeAllreduceDirect;
// All ranks as one lane, in pieces; see lane.h for how.
MakeAlgorithm MakeAllreduceDoubling;
MakeAlgorithm MakeAllreduceParts;
MakeAlgorithm MakeAllreduceHalving;
MakeAlgorithm MakeAllreduceTrees;
MakeAlgorithm MakeAllreduceRing;
// Several hosts, several ranks on some: reduced within each host through shared
// memory, then across, so that data cross between hosts once per host and
// several ranks drive the wire. For a communicator that spans hosts.
MakeAlgorithm MakeAllreduceHierarchical;

MakeAlgorithm MakeAllgatherShared;
// Each rank sends its rows to every other.
MakeAlgorithm MakeAllgatherDirect;
// Each rank sends on what it has got from others, where ranks lack connections:
// around a circle as by halving (lane.h), in log2(size) trips; where messages
// are long, once around a ring, in size - 1, for which it takes two.
MakeAlgorithm MakeAllgatherByOthers;

MakeAlgorithm MakeBroadcastShared;
// As FindTensorPlaces, of the tensors that this rank sends.
std::optional<TensorPlaces> FindSentPlaces(const CollectiveArguments& arguments,
                                           const Communicator& communicator);
// Where every root's large tensors lie in its arena: the others copy them from
// there. Only what is small is staged. Becomes `staged`, as above, if a peer's
// lie elsewhere.
std::unique_ptr<Collective> MakeBroadcastSharedTensors(
    const CollectiveArguments& arguments, Communicator& communicator,
    TensorPlaces places, MakeAlgorithm* staged);
// The data travel from rank to rank in pieces, so that each link carries
// nbytes once and all links work at the same time.
MakeAlgorithm MakeBroadcastChain;

MakeAlgorithm MakeReduceScatterShared;
// As the allreduces that are called like that, but for their second half.
MakeAlgorithm MakeReduceScatterMessages;
MakeAlgorithm MakeReduceScatterHierarchical;

MakeAlgorithm MakeAlltoallShared;
MakeAlgorithm MakeAlltoallDirect;

// To enter is the barrier; nothing is left to exchange.
MakeAlgorithm MakeBarrierMessages;
MakeAlgorithm MakeBarrierShared;

// As a barrier; all ranks find out which of them entered last.
MakeAlgorithm MakeJoin;

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_ALGORITHMS_H_
