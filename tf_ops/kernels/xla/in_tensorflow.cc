// The handlers in TensorFlow: its XLA knows them, and its profiler shows them.
#include <string>

#include "tf_ops/kernels/activity.h"
#include "tf_ops/kernels/xla/call_trace.h"
#include "tf_ops/kernels/xla/handlers.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow has the function of this name, not the one that its C header
// declares; its own header of it comes with all of XLA's.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace ring_keras {

using tsl::profiler::TraceMe;

CallTrace::CallTrace(const char* what, const Request* request) {
  if (!tsl::profiler::TraceMeRecorder::Active()) return;
  activity_ = new TraceMe([&] {
    return request == nullptr ? std::string(what) : what + Activity(*request);
  });
}

CallTrace::~CallTrace() { delete static_cast<TraceMe*>(activity_); }

namespace {

const bool registered = [] {
  for (const XlaHandler& known : kXlaHandlers) {
    xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), known.target,
                                         known.platform, known.handler);
  }
  return true;
}();

}  // namespace
}  // namespace ring_keras
