#include <array>

#include "tf_ops/collectives/circle.h"
#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/message_exchange.h"

namespace ring_keras {
namespace {

// The chunks of the members of the circle.
class ChunkCircle {
 public:
  ChunkCircle(const Lane& lane, const LaneChunks& chunks)
      : chunks_(chunks), circle_(lane.size()) {}

  const Circle& circle() const { return circle_; }
  // Where chunk `first % size` and those after it lie, `count` in all.
  std::array<Range, 2> Chunks(int first, int count) const {
    std::array<Range, 2> places;
    for (int i = 0; i < 2; ++i) {
      const Range members = circle_.Members(first, count)[i];
      if (members.size() == 0) continue;
      places[i] = {chunks_(members.begin).begin, chunks_(members.end - 1).end};
    }
    return places;
  }

 private:
  const LaneChunks& chunks_;
  Circle circle_;
};

}  // namespace

Task ReduceByHalving(const Lane& lane, char* data, LaneChunks chunks,
                     uint32_t tag) {
  const int index = lane.index;
  const ChunkCircle data_of(lane, chunks);
  const Circle& circle = data_of.circle();
  const auto member = [&](int distance) {
    return lane.members[circle.At(index, distance)];
  };
  MessageExchange exchange(lane.communicator, lane.key);
  // Reduce-scatter: a member hands on the chunks from the one of the member
  // that is so far on, and gets what others have of those that stay.
  for (int trip = circle.trips() - 1; trip >= 0; --trip) {
    const int distance = circle.Distance(trip);
    const auto in = data_of.Chunks(index, circle.Count(trip));
    const auto out = data_of.Chunks(index + distance, circle.Count(trip));
    for (int i = 0; i < 2; ++i, ++tag) {
      exchange.ReceiveInto(member(-distance), tag, data + in[i].begin,
                           in[i].size(), lane.reduction.function(),
                           lane.reduction.element_nbytes());
      exchange.Send(member(distance), tag, data + out[i].begin, out[i].size());
    }
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  }
  const Range own = data_of.Chunks(index, 1)[0];
  lane.reduction.Finish(data + own.begin, own.size());
  if (lane.scatters) co_return Status::Ok();
  // Allgather: the same ways back.
  for (int trip = 0; trip < circle.trips(); ++trip) {
    const int distance = circle.Distance(trip);
    const auto in = data_of.Chunks(index + distance, circle.Count(trip));
    const auto out = data_of.Chunks(index, circle.Count(trip));
    for (int i = 0; i < 2; ++i, ++tag) {
      exchange.Receive(member(distance), tag, data + in[i].begin, in[i].size());
      exchange.Send(member(-distance), tag, data + out[i].begin, out[i].size());
    }
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
  }
  co_return Status::Ok();
}

}  // namespace ring_keras
