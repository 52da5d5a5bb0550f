// Allreduces that a compiled computation has started and not waited for.
#ifndef RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
#define RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tf_ops/runtime/submitted_call.h"

namespace ring_keras {

struct StartedCall {
  std::shared_ptr<SubmittedCall> call;  // Null: none.
  std::vector<const void*> memory;      // Of its results.
};

// Those of all runs in the process. XLA has ids for runs, but TensorFlow leaves
// them all at 0. What tells apart two runs of one computation is where the
// token is that a start gives: XLA keeps it there for the wait, so until then
// no other run has that memory.
class StartedCalls {
 public:
  static StartedCalls& Get();

  void Add(int64_t number, const void* token, StartedCall call);

  // The one that start `number` gave with `token`, if there is one.
  StartedCall Take(int64_t number, const void* token);

  // For a run that fails: returns when all of now have ended, its own among
  // them. The others' waits still find theirs. Its own stay, at most one for
  // each start and place of a token, until a start puts another in its place;
  // no wait takes one before that, as its own start comes first.
  void Drain();

  // Whether a wait was compiled with the start of this number. Without one, a
  // run may end while its collective is under way. Kept for as long as the
  // process lives, as what is compiled may be.
  void SetHasWait(int64_t number);
  bool HasWait(int64_t number);

 private:
  std::mutex mutex_;
  std::map<std::pair<int64_t, const void*>, StartedCall> calls_;
  std::set<int64_t> with_wait_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_STARTED_CALLS_H_
