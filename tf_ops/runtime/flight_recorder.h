// Writes down what this rank is doing, with the stacks of all threads, when
// something is wrong.
#ifndef RING_KERAS_RUNTIME_FLIGHT_RECORDER_H_
#define RING_KERAS_RUNTIME_FLIGHT_RECORDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/monitoring/dump_budget.h"
#include "tf_ops/monitoring/dump_writer.h"
#include "tf_ops/monitoring/recorder.h"

namespace ring_keras {

// The driver's, but for Await().
class FlightRecorder {
 public:
  // Who has a rank write.
  enum class Asker : uint8_t { kEngine, kThisRank, kPeer };

  // `name` is this rank's. Into `trace_dir`; if that is empty, nothing is
  // written. `recorder` outlives this.
  FlightRecorder(const std::string& trace_dir, int rank, int size,
                 std::string name, const Recorder& recorder);

  // Whether to write now, which counts then.
  bool Takes(DumpCause cause, Asker asker);
  // After Takes().
  void Write(DumpCause cause, const std::string& why,
             std::vector<PendingCollective> pending);
  // Waits some seconds for what was written to be there. From any thread.
  void Await();

 private:
  const int rank_;
  const int size_;
  const std::string name_;
  const Recorder& recorder_;
  DumpBudget budget_;
  const std::unique_ptr<DumpWriter> writer_;  // Null: nothing is written.
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_FLIGHT_RECORDER_H_
