#include <vector>

#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/message_exchange.h"

namespace ring_keras {

Task ReduceByParts(const Lane& lane, char* data, LaneChunks chunks,
                   uint32_t tag) {
  const int size = lane.size();
  const Range own = chunks(lane.index);
  const SpareMemory::Loan received(lane.communicator.spare_memory(),
                                   own.size() * (size - 1));
  std::vector<const void*> sources(size);
  MessageExchange exchange(lane.communicator, lane.key);
  // Each starts with another, so that no member gets everybody's at once.
  for (int step = 1; step < size; ++step) {
    const int to = (lane.index + step) % size;
    const int from = (lane.index + size - step) % size;
    char* place = received.get() + (step - 1) * own.size();
    sources[from] = place;
    exchange.Receive(lane.members[from], tag, place, own.size());
    exchange.Send(lane.members[to], tag, data + chunks(to).begin,
                  chunks(to).size());
  }
  co_await exchange.Done();
  RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  char* result = data + own.begin;
  sources[lane.index] = result;
  lane.reduction.Combine(result, sources.data(), size, own.size());
  if (lane.scatters) co_return Status::Ok();
  for (int step = 1; step < size; ++step) {
    const int to = (lane.index + step) % size;
    const int from = (lane.index + size - step) % size;
    exchange.Receive(lane.members[from], tag + 1, data + chunks(from).begin,
                     chunks(from).size());
    exchange.Send(lane.members[to], tag + 1, result, own.size());
  }
  co_await exchange.Done();
  co_return lane.communicator.status();
}

}  // namespace ring_keras
