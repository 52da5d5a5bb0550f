#include "tf_ops/common/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace ring_keras {
namespace {

// TensorFlow's files and libraries, pipes, devices, and the program's own.
constexpr size_t kOthers = 256;

}  // namespace

Status AllowDescriptors(size_t count, const std::string& what) {
  const rlim_t needed = count + kOthers;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return Status::Ok();
  }
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur == needed && setrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return Status::Ok();
  }
  return Status(
      StatusCode::kResourceExhausted,
      StrCat(what, " needs ", needed, " descriptors, and its process may have ",
             limit.rlim_max,
             ". Raise the hard limit there (`ulimit -Hn`, LimitNOFILE, "
             "/etc/security/limits.conf)."));
}

}  // namespace ring_keras
