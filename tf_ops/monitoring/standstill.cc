#include "tf_ops/monitoring/standstill.h"

#include <algorithm>
#include <set>

namespace ring_keras {
namespace {

// Something begins or ends.
struct Event {
  enum class What : uint8_t { kStanding, kMoving, kWaiting, kInput };
  Ticks at;
  What what;
  bool begins;
  size_t collective;  // kWaiting.
};

void AddSpan(std::vector<Event>& events, Event::What what, Ticks begin,
             Ticks end, Ticks from, Ticks to, size_t collective = 0) {
  begin = std::max(begin, from);
  end = std::min(end, to);
  if (begin >= end) return;
  events.push_back({begin, what, true, collective});
  events.push_back({end, what, false, collective});
}

}  // namespace

Standstill FindStandstill(const std::vector<Standing>& collectives,
                          const Spans& inputs, Ticks from, Ticks to,
                          int job_size) {
  using What = Event::What;
  Standstill found;
  found.waited_for.resize(job_size);
  std::vector<Event> events;
  events.reserve(6 * collectives.size() + 2 * inputs.size());
  for (size_t i = 0; i < collectives.size(); ++i) {
    const Standing& one = collectives[i];
    if (one.first_byte_at != 0) {
      AddSpan(events, What::kMoving, one.first_byte_at, one.last_byte_at, from,
              to);
    }
    if (one.awaited_at == 0) continue;
    AddSpan(events, What::kStanding, one.awaited_at, one.released_at, from, to);
    if (!one.waits_for_peer) continue;
    AddSpan(events, What::kWaiting, std::max(one.awaited_at, one.arrived_at),
            one.matched_at, from, to, i);
  }
  for (const auto& [begin, end] : inputs) {
    AddSpan(events, What::kInput, begin, end, from, to);
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.at < b.at; });

  int standing = 0, moving = 0, input = 0;
  // Those that wait for a rank, first the one whose rank ends the wait: which
  // is complete first.
  std::set<std::pair<Ticks, size_t>> waiting;
  Ticks last = from;
  for (const Event& event : events) {
    const Ticks passed = event.at - last;
    last = event.at;
    if (standing > 0 && moving == 0 && !waiting.empty()) {
      found.wait += passed;
      const int rank = collectives[waiting.begin()->second].last_rank;
      if (rank >= 0 && rank < job_size) found.waited_for[rank] += passed;
    } else if (standing > 0) {
      found.exposed += passed;
    } else {
      if (moving > 0) found.overlap += passed;
      if (input > 0) found.input += passed;
    }
    const int change = event.begins ? 1 : -1;
    switch (event.what) {
      case What::kStanding:
        standing += change;
        break;
      case What::kMoving:
        moving += change;
        break;
      case What::kInput:
        input += change;
        break;
      case What::kWaiting: {
        const std::pair place(collectives[event.collective].matched_at,
                              event.collective);
        if (event.begins) {
          waiting.insert(place);
        } else {
          waiting.erase(place);
        }
        break;
      }
    }
  }
  return found;
}

}  // namespace ring_keras
