// What the engine of this process's membership has noted, for those who watch.
#ifndef RING_KERAS_RUNTIME_OBSERVATION_H_
#define RING_KERAS_RUNTIME_OBSERVATION_H_

#include <map>
#include <string>
#include <vector>

#include "tf_ops/common/export.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/monitoring/recorder.h"
#include "tf_ops/transport/stream.h"

namespace ring_keras {

struct Observation {
  TickScale scale;
  std::vector<StepRecord> steps;
  StepTotals totals;
  Ticks stood_still = 0;  // See StepBook::StoodStill.
  std::vector<Tally> tallies;
};

// With or without the single steps: to copy those takes the driver's time.
// NotInitialized: this process is in no job.
RING_KERAS_EXPORT StatusOr<Observation> Observe(bool with_steps);

// The last collectives, those after number `after`, in the order in which they
// ended, then those under way. NotInitialized.
struct ObservedCollectives {
  TickScale scale;
  std::vector<CollectiveRecord> records;
};
RING_KERAS_EXPORT StatusOr<ObservedCollectives> ObserveCollectives(
    uint64_t after);

// What this rank has sent to each rank that it reaches by a network.
// NotInitialized.
struct ObservedLink {
  int receiver = 0;
  SentTraffic sent;
};
RING_KERAS_EXPORT StatusOr<std::vector<ObservedLink>> ObserveLinks();

// Which ranks this one waits for, and since when, but for those whose data last
// longer than its own. NotInitialized.
struct ObservedWaits {
  TickScale scale;
  std::map<int, Ticks> since;
};
RING_KERAS_EXPORT StatusOr<ObservedWaits> ObserveWaits();

// Steps of training follow: what has passed since the last one belongs to none.
// NotInitialized.
RING_KERAS_EXPORT Status BeginSteps();

// Whether anything is noted: it is, but where that itself is measured.
// NotInitialized.
RING_KERAS_EXPORT Status SetRecording(bool on);

// Has every rank write down what it is doing, for `why`. NotInitialized.
RING_KERAS_EXPORT Status DumpAll(const std::string& why);

// While somebody debugs this rank no rank gives up waiting, or warns of it.
// NotInitialized.
RING_KERAS_EXPORT Status SetDebugged(bool is_debugged);

// As StepBook::AddInput. Without effect outside of a job.
RING_KERAS_EXPORT void AddInput(Ticks from, Ticks to, double examples);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_OBSERVATION_H_
