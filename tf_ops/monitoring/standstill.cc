#include "tf_ops/monitoring/standstill.h"

#include <algorithm>

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

// Of the ranks that are missing, the one that ends the wait: whose collective
// is complete first.
int MissingRank(const std::vector<Standing>& collectives,
                const std::vector<size_t>& waiting) {
  const size_t first = *std::min_element(
      waiting.begin(), waiting.end(), [&](size_t a, size_t b) {
        return collectives[a].matched_at < collectives[b].matched_at;
      });
  return collectives[first].last_rank;
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
  std::vector<size_t> waiting;
  Ticks last = from;
  for (const Event& event : events) {
    const Ticks passed = event.at - last;
    last = event.at;
    if (standing > 0 && moving == 0 && !waiting.empty()) {
      found.wait += passed;
      const int rank = MissingRank(collectives, waiting);
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
      case What::kWaiting:
        if (event.begins) {
          waiting.push_back(event.collective);
        } else {
          std::erase(waiting, event.collective);
        }
        break;
    }
  }
  return found;
}

}  // namespace ring_keras
