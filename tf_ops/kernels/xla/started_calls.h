// Allreduces that a compiled computation has started and not waited for.
#ifndef RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
#define RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tf_ops/runtime/request.h"

namespace ring_keras {

// A collective on the memory of a computation that runs.
class CallInFlight {
 public:
  // Hands `request` to the engine, as Runtime::Submit does.
  static std::shared_ptr<CallInFlight> Submit(Request request,
                                              double patience_s);

  // Returns when what follows in the computation may use the results: what is
  // given to `stream` from then on, if the memory is a GPU's. Or after an
  // error.
  Status Await(void* stream = nullptr);

  // Returns when the memory is no longer touched.
  void AwaitEnd();

 private:
  CallInFlight() = default;

  std::shared_ptr<DeviceWork> device_work_;  // Null: in host memory.
  std::mutex mutex_;                         // Guards the rest.
  std::condition_variable changed_;
  bool launched_ = false;
  bool ended_ = false;
  Status status_;
};

// Which runs have which in flight. A run ends only after all of its own have,
// for its memory ends with it.
class StartedCalls {
 public:
  static StartedCalls& Get();

  void Add(int64_t run, int64_t number, std::shared_ptr<CallInFlight> call);

  // The one that `number` of the run has started; null if there is none.
  std::shared_ptr<CallInFlight> Take(int64_t run, int64_t number);

  // Forgets those of a run that fails, when they have ended.
  void Drain(int64_t run);

 private:
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<CallInFlight>> calls_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
