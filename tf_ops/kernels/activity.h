// What TensorFlow's profiler shows of a collective.
#ifndef RING_KERAS_KERNELS_ACTIVITY_H_
#define RING_KERAS_KERNELS_ACTIVITY_H_

#include <cstdint>
#include <string>
#include <utility>

#include "tf_ops/runtime/request.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace ring_keras {

// Its name, and the bytes of this rank's tensors.
inline std::string Activity(const Request& request) {
  size_t nbytes = 0;
  for (const TensorView& input : request.inputs) {
    nbytes += ElementCount(input.shape) * SizeOf(request.dtype);
  }
  return tsl::profiler::TraceMeEncode(
      StrCat(NameOf(request.kind), " '", request.name, "'"),
      {{"bytes", nbytes}});
}

// One that ends on another thread than it begins on, where it is shown then.
// (TensorFlow's own activities of that kind ended the process when they were
// read.) Not thread-safe.
class ActivitySpan {
 public:
  // `name()` is called if anybody looks.
  template <typename Name>
  void Begin(Name name) {
    if (!tsl::profiler::TraceMeRecorder::Active()) return;
    name_ = name();
    began_ns_ = tsl::profiler::GetCurrentTimeNanos();
  }

  void End() {
    const int64_t began_ns = std::exchange(began_ns_, 0);
    if (began_ns == 0 || !tsl::profiler::TraceMeRecorder::Active()) return;
    tsl::profiler::TraceMeRecorder::Record(
        {std::move(name_), began_ns, tsl::profiler::GetCurrentTimeNanos()});
  }

 private:
  std::string name_;
  int64_t began_ns_ = 0;  // 0: nobody looks.
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_ACTIVITY_H_
