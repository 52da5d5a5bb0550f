// In which order a rank gives its GPU the collectives of all communicators.
//
// A device may have room for only one of NCCL's kernels, each of which waits
// for its peers. So if two ranks launch two collectives in different orders,
// even on different communicators, both may wait for ever. All collectives on
// devices therefore have one order in the whole job, which no rank needs to
// know all of (Lamport's clocks, as in Skeen's totally ordered multicast):
//
// With its announcement of a collective, each rank proposes a time for it,
// later than any that it knows of. The collective's time is the latest of these
// proposals, which each of its ranks knows when it has all announcements. A
// rank launches in the order of the times, by key where they are equal; what is
// not settled comes first.
//
// - A collective that lacks announcements comes no earlier than this rank's own
//   proposal. So it holds up those that are later than that, and no others.
// - What this rank has not entered yet comes later than all it has launched,
//   because its own proposal will.
// - So every rank launches in ascending order of what is the same on all, and
//   of the collectives that all their ranks have entered, the first is next on
//   each of its ranks. No two can wait for each other, unless a rank does not
//   enter what another has entered before the end of a later one.
#ifndef RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_
#define RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace ring_keras {

// Not thread-safe: the driver's.
class LaunchOrder {
 public:
  // No proposal: not for a device.
  static constexpr uint64_t kNoTime = 0;

  struct Entry {
    uint64_t id = 0;  // This rank's own; 0 is none.
    uint64_t time = kNoTime;
  };

  // This rank announces a collective: the time that it proposes.
  Entry Enter() {
    const Entry entry{++ids_, ++clock_};
    Put(entry.id, {entry.time, kNotSettled});
    return entry;
  }

  // All its ranks have entered it; `time` is the latest proposal, and `key` is
  // its own on every rank.
  void Settle(uint64_t id, uint64_t time, uint64_t key) {
    clock_ = std::max(clock_, time);
    Put(id, {time, std::max(key, kNotSettled + 1)});
  }

  // Whether it is settled, and before all others that were entered.
  bool IsNext(uint64_t id) const {
    const auto found = entered_.find(id);
    return found != entered_.end() && found->second.key != kNotSettled &&
           next() == id;
  }
  // The one that all others wait for.
  std::optional<uint64_t> next() const {
    if (order_.empty()) return std::nullopt;
    return std::get<2>(*order_.begin());
  }

  // It is launched, or never will be. No effect if it was not entered.
  void Pass(uint64_t id) {
    const auto found = entered_.find(id);
    if (found == entered_.end()) return;
    order_.erase({found->second.time, found->second.key, id});
    entered_.erase(found);
  }

 private:
  static constexpr uint64_t kNotSettled = 0;

  struct Place {
    uint64_t time;  // At least, unless it is settled.
    uint64_t key;
  };

  void Put(uint64_t id, Place place) {
    Pass(id);
    entered_.emplace(id, place);
    order_.emplace(place.time, place.key, id);
  }

  uint64_t ids_ = 0;
  uint64_t clock_ = kNoTime;  // The latest time this rank knows of.
  std::map<uint64_t, Place> entered_;
  // Times, keys and ids of these.
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>> order_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COLLECTIVES_LAUNCH_ORDER_H_
