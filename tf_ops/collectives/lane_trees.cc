#include <algorithm>

#include "tf_ops/collectives/double_tree.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/message_exchange.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/collectives/task_group.h"

namespace ring_keras {
namespace {

// Below, a message costs more than its bytes.
constexpr size_t kChunkBytes = size_t{64} << 10;
// In each tree.
constexpr size_t kMaxTreeChunks = 64;
static_assert(2 * kTrees * kMaxTreeChunks <= Lane::kMinTags);

// One chunk on its way up a tree and down again.
Task ReduceChunk(const Lane& lane, const TreePlace& place, char* data,
                 size_t nbytes, uint32_t tag) {
  const uint32_t down = tag + 1;
  const auto has = [](int index) { return index != TreePlace::kNone; };
  const ReduceFunction combine = lane.reduction.function();
  const size_t element = lane.reduction.element_nbytes();
  const SpareMemory::Loan from_right(lane.communicator.spare_memory(),
                                     has(place.right) ? nbytes : 0);
  MessageExchange exchange(lane.communicator, lane.key);
  if (has(place.left)) {
    exchange.ReceiveInto(lane.members[place.left], tag, data, nbytes, combine,
                         element);
  }
  if (has(place.right)) {
    exchange.Receive(lane.members[place.right], tag, from_right.get(), nbytes);
  }
  co_await exchange.Done();
  RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  // After the left one's, whichever came first.
  if (has(place.right)) combine(data, data, from_right.get(), nbytes / element);
  if (has(place.parent)) {
    const int parent = lane.members[place.parent];
    exchange.Send(parent, tag, data, nbytes);
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
    exchange.Receive(parent, down, data, nbytes);
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  } else {
    lane.reduction.Finish(data, nbytes);
  }
  for (int child : {place.left, place.right}) {
    if (has(child)) exchange.Send(lane.members[child], down, data, nbytes);
  }
  co_await exchange.Done();
  co_return lane.communicator.status();
}

}  // namespace

Task ReduceByTrees(const Lane& lane, char* data, LaneChunks all, uint32_t tag) {
  const size_t nbytes = all.nbytes();
  const size_t element = lane.reduction.element_nbytes();
  const size_t chunks = std::clamp(CeilDivide(nbytes, kTrees * kChunkBytes),
                                   size_t{1}, kMaxTreeChunks);
  TreePlace places[kTrees];
  for (int tree = 0; tree < kTrees; ++tree) {
    places[tree] = PlaceInTree(tree, lane.index, lane.size());
  }
  TaskGroup under_way(lane.communicator);
  for (size_t chunk = 0; chunk < kTrees * chunks; ++chunk, tag += 2) {
    const Range range = ElementPart(nbytes, element, kTrees * chunks, chunk);
    under_way.Spawn([&] {
      return ReduceChunk(lane, places[chunk % kTrees], data + range.begin,
                         range.size(), tag);
    });
  }
  co_await under_way.AllEnded();
  co_return lane.communicator.status();
}

}  // namespace ring_keras
