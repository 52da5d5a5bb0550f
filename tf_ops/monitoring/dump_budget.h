// How often a rank writes down what it is doing.
//
// A directory must not be filled by a job that merely waits often: stalls get
// half of what there is, and what follows may be the failure itself.
#ifndef RING_KERAS_MONITORING_DUMP_BUDGET_H_
#define RING_KERAS_MONITORING_DUMP_BUDGET_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace ring_keras {

// Travels in frames.
enum class DumpCause : uint8_t { kOther = 0, kStall = 1 };

class DumpBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Each has up to 1.5 MB.
  static constexpr int kMaxDumps = 32;
  static constexpr int kMaxStalls = kMaxDumps / 2;
  // All ranks notice a failure, and each has all others write. A stall holds no
  // failure up.
  static constexpr std::chrono::seconds kInterval{5};

  // Whether to write one now, which counts then. `at_once`: however soon after
  // the last, since somebody asks for it.
  bool Take(DumpCause cause, bool at_once, Time now);
  // Of the one that was taken last: what is not written any more; empty if one
  // like it may follow.
  std::string Exhausted(DumpCause cause) const;

 private:
  int taken_ = 0;
  int stalls_ = 0;
  Time next_{};
  Time next_stall_{};
};

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_DUMP_BUDGET_H_
