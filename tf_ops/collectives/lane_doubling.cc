#include <bit>

#include "tf_ops/collectives/lane.h"
#include "tf_ops/collectives/message_exchange.h"

namespace ring_keras {
namespace {

// Members beyond a power of two give their data to a neighbour and get the
// result from it. The first 2 * `extra` members are such pairs: the even one
// stands aside. The others are numbered from 0 for the rounds of trading.
class Pairing {
 public:
  explicit Pairing(int size)
      : active_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        extra_(size - active_) {}

  int active() const { return active_; }
  bool paired(int index) const { return index < 2 * extra_; }
  bool stands_aside(int index) const { return paired(index) && index % 2 == 0; }
  int NumberOf(int index) const {
    return paired(index) ? index / 2 : index - extra_;
  }
  int IndexOf(int number) const {
    return number < extra_ ? 2 * number + 1 : number + extra_;
  }

 private:
  int active_;
  int extra_;
};

}  // namespace

Task ReduceByDoubling(const Lane& lane, char* data, LaneChunks all,
                      uint32_t tag) {
  const size_t nbytes = all.nbytes();
  const Pairing pairing(lane.size());
  const SpareMemory::Loan received(lane.communicator.spare_memory(), nbytes);
  const size_t count = nbytes / lane.reduction.element_nbytes();
  const ReduceFunction combine = lane.reduction.function();
  MessageExchange exchange(lane.communicator, lane.key);
  const uint32_t last_tag = tag + lane.tag_count() - 1;

  if (pairing.stands_aside(lane.index)) {
    const int partner = lane.members[lane.index + 1];
    exchange.Send(partner, tag, data, nbytes);
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
    exchange.Receive(partner, last_tag, data, nbytes);
    co_await exchange.Done();
    co_return lane.communicator.status();
  }
  if (pairing.paired(lane.index)) {
    exchange.Receive(lane.members[lane.index - 1], tag, received.get(), nbytes);
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
    combine(data, received.get(), data, count);
  }
  const int number = pairing.NumberOf(lane.index);
  for (int distance = 1; distance < pairing.active(); distance *= 2) {
    ++tag;
    const int other = number ^ distance;
    const int partner = lane.members[pairing.IndexOf(other)];
    exchange.Receive(partner, tag, received.get(), nbytes);
    exchange.Send(partner, tag, data, nbytes);
    co_await exchange.Done();
    RING_KERAS_CO_RETURN_IF_ERROR(lane.communicator.status());
    // The lower one's data come first on both sides.
    if (other < number) {
      combine(data, received.get(), data, count);
    } else {
      combine(data, data, received.get(), count);
    }
  }
  lane.reduction.Finish(data, nbytes);
  if (pairing.paired(lane.index)) {
    exchange.Send(lane.members[lane.index - 1], last_tag, data, nbytes);
    co_await exchange.Done();
  }
  co_return lane.communicator.status();
}

}  // namespace ring_keras
