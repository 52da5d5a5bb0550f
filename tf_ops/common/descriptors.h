// How many descriptors this process may open.
#ifndef RING_KERAS_COMMON_DESCRIPTORS_H_
#define RING_KERAS_COMMON_DESCRIPTORS_H_

#include <cerrno>
#include <cstddef>
#include <string>

#include "tf_ops/common/status.h"

namespace ring_keras {

// Sees to it that the process may open `needed` descriptors beside some that it
// has for other purposes, and if it can `wanted`, which is no less: it raises
// its own limit, by default 1,024, up to the hard one, which those that it
// starts inherit. ResourceExhausted: `what` needs more than that.
Status AllowDescriptors(size_t needed, size_t wanted, const std::string& what);

// Whether a system call failed because no descriptor is left.
inline bool IsOutOfDescriptors(int errno_value) {
  return errno_value == EMFILE || errno_value == ENFILE;
}

// What to do then, for the process of which the words before speak.
inline constexpr char kDescriptorAdvice[] =
    "Raise the limit there (`ulimit -n`, LimitNOFILE, "
    "/etc/security/limits.conf), or have the program keep fewer files open.";

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_DESCRIPTORS_H_
