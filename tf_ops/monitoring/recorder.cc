#include "tf_ops/monitoring/recorder.h"

#include <algorithm>
#include <bit>

namespace ring_keras {

Recorder::Recorder(int rank, int size)
    : rank_(rank),
      ring_(kRecords),
      tallies_(size_t{kAlgorithmCount} * kSizeClasses),
      steps_(rank, size) {}

void Recorder::Add(const CollectiveRecord& ended, bool alone) {
  CollectiveRecord& place = ring_[added_++ % kRecords];
  place = ended;
  place.number = added_;
  if (ended.outcome == StatusCode::kOk) Count(ended);
  steps_.Add(ended, alone);
}

void Recorder::Count(const CollectiveRecord& ended) {
  const int size_class =
      std::min<int>(std::bit_width(ended.nbytes), kSizeClasses - 1);
  Tally& tally =
      tallies_[ended.algorithm.number * size_t{kSizeClasses} + size_class];
  if (tally.count++ == 0) {
    tally.kind = ended.kind;
    tally.algorithm = ended.algorithm.name;
    tally.size_class = size_class;
  }
  tally.nbytes += ended.nbytes;
  if (ended.last_rank != rank_)
    tally.wait += ended.matched_at - ended.arrived_at;
  if (ended.last_byte_at <= ended.first_byte_at) return;
  const Ticks transfer = ended.last_byte_at - ended.first_byte_at;
  const double bus_bytes = BusBytes(ended.kind, ended.nbytes, ended.size);
  tally.transfer += transfer;
  tally.bus_bytes += bus_bytes;
  tally.best_bus_bytes_per_tick = std::max(
      tally.best_bus_bytes_per_tick, bus_bytes / static_cast<double>(transfer));
}

std::vector<CollectiveRecord> Recorder::Recent(uint64_t after) const {
  const uint64_t first = std::max(std::min(after, added_),
                                  added_ > kRecords ? added_ - kRecords : 0);
  std::vector<CollectiveRecord> recent;
  recent.reserve(added_ - first);
  for (uint64_t number = first; number < added_; ++number) {
    recent.push_back(ring_[number % kRecords]);
  }
  return recent;
}

std::vector<Tally> Recorder::Tallies() const {
  std::vector<Tally> tallies;
  for (const Tally& tally : tallies_) {
    if (tally.count > 0) tallies.push_back(tally);
  }
  return tallies;
}

double BusBytes(CollectiveKind kind, uint64_t nbytes, int size) {
  const auto bytes = static_cast<double>(nbytes);
  const double others = size - 1;
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return 2 * bytes * others / size;
    case CollectiveKind::kAllgather:
      return bytes * others;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAlltoall:
      return bytes * others / size;
    case CollectiveKind::kBroadcast:
      return size > 1 ? bytes : 0;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      break;
  }
  return 0;
}

}  // namespace ring_keras
