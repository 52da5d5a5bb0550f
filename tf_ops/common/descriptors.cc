#include "tf_ops/common/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace ring_keras {
namespace {

// TensorFlow's files and libraries, pipes, devices, and the program's own.
constexpr size_t kOthers = 256;

}  // namespace

Status AllowDescriptors(size_t needed, size_t wanted, const std::string& what) {
  const rlim_t enough = needed + kOthers, best = wanted + kOthers;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= best) {
    return Status::Ok();
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(best, limit.rlim_max);
  const bool raised = setrlimit(RLIMIT_NOFILE, &limit) == 0;
  if ((raised ? limit.rlim_cur : before) >= enough) return Status::Ok();
  return Status(
      StatusCode::kResourceExhausted, ErrorCode::kTooFewDescriptors,
      StrCat(what, " needs ", enough, " descriptors, and its process may have ",
             limit.rlim_max,
             ". Raise the hard limit there (`ulimit -Hn`, LimitNOFILE, "
             "/etc/security/limits.conf)."));
}

}  // namespace ring_keras
