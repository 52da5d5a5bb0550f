#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/message_exchange.h"

namespace ring_keras {

Task ReduceByRing(const Lane& lane, char* data, LaneChunks chunks,
                  uint32_t tag) {
  const int size = lane.size();
  const int index = lane.index;
  const int before = (index + size - 1) % size;
  const int next = lane.members[(index + 1) % size];
  const int previous = lane.members[before];
  const size_t element = lane.reduction.element_nbytes();
  const auto chunk = [&](int which) { return chunks(which % size); };
  MessageExchange exchange(lane.communicator, lane.key);
  // Reduce-scatter: chunk c starts at member c + 1 and is complete at c.
  for (int step = 0; step < size - 1; ++step, ++tag) {
    const Range out = chunk(before + size - step);
    const Range in = chunk(before + size - 1 - step);
    exchange.ReceiveInto(previous, tag, data + in.begin, in.size(),
                         lane.reduction.function(), element);
    exchange.Send(next, tag, data + out.begin, out.size());
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  }
  const Range complete = chunk(index);
  lane.reduction.Finish(data + complete.begin, complete.size());
  if (lane.scatters) co_return Status::Ok();
  // Allgather: the complete chunks go once around.
  for (int step = 0; step < size - 1; ++step, ++tag) {
    const Range out = chunk(index + size - step);
    const Range in = chunk(before + size - step);
    exchange.Receive(previous, tag, data + in.begin, in.size());
    exchange.Send(next, tag, data + out.begin, out.size());
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  }
  co_return Status::Ok();
}

}  // namespace ring_keras
