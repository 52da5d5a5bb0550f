// What this rank's engine remembers of its collectives: the last ones (the
// flight recorder), what each algorithm achieved, and the steps.
//
// All of it is the driver's, which is one thread at a time, and is written with
// plain stores: no lock, nothing atomic, nothing allocated but once a step. Who
// wants to read asks the driver (Engine::WithDriver).
#ifndef RING_KERAS_MONITORING_RECORDER_H_
#define RING_KERAS_MONITORING_RECORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tf_ops/monitoring/collective_record.h"
#include "tf_ops/monitoring/step_book.h"

namespace ring_keras {

// Collectives of one kind, algorithm and size.
struct Tally {
  CollectiveKind kind = CollectiveKind::kBarrier;
  const char* algorithm = "none";
  int size_class = 0;  // Bytes below 2 to this power, and not below half of it.
  uint64_t count = 0;  // That ended well.
  uint64_t nbytes = 0;
  Ticks wait = 0;
  // Of those whose transfer was timed.
  Ticks transfer = 0;
  double bus_bytes = 0;
  double best_bus_bytes_per_tick = 0;
};

class Recorder {
 public:
  // How many collectives it remembers.
  static constexpr size_t kRecords = 4096;

  // `rank` of the whole job of `size`.
  Recorder(int rank, int size);

  // This rank has arrived at a collective that begins a step of its training.
  void BeginStep(const CollectiveRecord& first) { steps_.BeginStep(first); }
  // One will end: has the processor get what Add() writes to, which it has not
  // seen since 4,096 collectives ago.
  void Expect() const {
    const auto* place =
        reinterpret_cast<const char*>(&ring_[added_ % kRecords]);
    for (size_t at = 0; at < sizeof(CollectiveRecord); at += kCacheLineBytes) {
      __builtin_prefetch(place + at, /*for writing*/ 1);
    }
    // Records are not aligned to lines.
    __builtin_prefetch(place + sizeof(CollectiveRecord) - 1, 1);
  }
  // As StepBook::Add.
  void Add(const CollectiveRecord& ended, bool alone);

  // Whether anything is noted: always, but where that itself is measured.
  bool is_on() const { return on_; }
  void set_on(bool on) { on_ = on; }

  StepBook& steps() { return steps_; }

  // In the order in which they ended; those after number `after`.
  std::vector<CollectiveRecord> Recent(uint64_t after = 0) const;
  std::vector<Tally> Tallies() const;

 private:
  static constexpr int kSizeClasses = 64;
  static constexpr size_t kCacheLineBytes = 64;

  void Count(const CollectiveRecord& ended);

  const int rank_;
  bool on_ = true;
  std::vector<CollectiveRecord> ring_;
  uint64_t added_ = 0;
  std::vector<Tally> tallies_;  // By algorithm, then by size.
  StepBook steps_;
};

// Bytes that one link carries for a collective of `size` ranks, each with
// `nbytes` of tensors: bus bandwidth is that over time.
double BusBytes(CollectiveKind kind, uint64_t nbytes, int size);

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_RECORDER_H_
