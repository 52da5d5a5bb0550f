// What TensorFlow's profiler shows of a collective.
#ifndef RING_KERAS_KERNELS_ACTIVITY_H_
#define RING_KERAS_KERNELS_ACTIVITY_H_

#include <string>

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

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_ACTIVITY_H_
