// What the profiler shows of a call, where the one who runs XLA has a profiler.
#ifndef RING_KERAS_KERNELS_XLA_CALL_TRACE_H_
#define RING_KERAS_KERNELS_XLA_CALL_TRACE_H_

#include "tf_ops/runtime/request.h"

namespace ring_keras {

// From its making to its end.
class CallTrace {
 public:
  // "`what``request`", or `what` alone for null.
  CallTrace(const char* what, const Request* request);
  ~CallTrace();
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

 private:
  void* activity_ = nullptr;  // None if nobody looks.
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_CALL_TRACE_H_
