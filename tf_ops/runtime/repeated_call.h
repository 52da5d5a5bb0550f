// A collective that is made again and again, with the same arguments.
//
// Of each call all that the arguments determine was found out before: the
// request is made and checked once, the algorithm is kept, nothing is allocated
// and nothing is looked up by name. What ranks promise each other in a call is
// what it is in every other: the call posts in the channel of its name, ends
// there if all ranks come within a moment, and else becomes an Operation, which
// has posted already (engine_at_once.cc).
#ifndef RING_KERAS_RUNTIME_REPEATED_CALL_H_
#define RING_KERAS_RUNTIME_REPEATED_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "tf_ops/collectives/collective.h"
#include "tf_ops/matching/name_use.h"
#include "tf_ops/monitoring/collective_record.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class RepeatedCall {
 public:
  // An allreduce of host memory, in no step, that may be done at any time while
  // this lives.
  explicit RepeatedCall(Request request) : request_(std::move(request)) {}
  RepeatedCall(const RepeatedCall&) = delete;
  RepeatedCall& operator=(const RepeatedCall&) = delete;

  const Request& request() const { return request_; }

 private:
  friend class Engine;

  // What holds as long as the engine, the names that it remembers, and the
  // tuning are those of `engine`, `forgotten` and `tunings`. Guarded by the
  // engine's mutex.
  struct Found {
    uint64_t engine = 0;  // 0: nothing was found out yet.
    uint64_t forgotten = 0;
    uint64_t tunings = 0;
    NameUse* name = nullptr;
    // Null while an operation has it.
    std::unique_ptr<Collective> collective;
    size_t slot_nbytes = 0;
    uint64_t signature = 0;
    CollectiveRecord record;  // All but the moments.
  };

  const Request request_;
  Found found_;
};

// A call that could not end at once: somebody has to wait for it.
struct BegunCall {
  std::unique_ptr<Operation> operation;
  std::atomic<bool> ended{false};
  Status result;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_REPEATED_CALL_H_
