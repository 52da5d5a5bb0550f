// Allreduces that a compiled computation has started and not waited for.
#ifndef RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
#define RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tf_ops/runtime/submitted_call.h"

namespace ring_keras {

// Which runs have which in flight. A run ends only after all of its own have,
// for its memory ends with it.
class StartedCalls {
 public:
  static StartedCalls& Get();

  void Add(int64_t run, int64_t number, std::shared_ptr<SubmittedCall> call);

  // The one that `number` of the run has started; null if there is none.
  std::shared_ptr<SubmittedCall> Take(int64_t run, int64_t number);

  // Forgets those of a run that fails, when they have ended.
  void Drain(int64_t run);

 private:
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<SubmittedCall>> calls_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
