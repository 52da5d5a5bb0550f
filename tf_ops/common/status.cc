#include "tf_ops/common/status.h"

#include <cstring>

namespace ring_keras {

Status Interrupted() {
  return Status(
      StatusCode::kInterrupted,
      "it was interrupted: a signal's handler raised an exception, or "
      "shutdown() was called");
}

std::string ErrnoMessage(int errno_value) {
  char buffer[128];
  // The GNU strerror_r returns the text, which need not lie in `buffer`.
  return StrCat(strerror_r(errno_value, buffer, sizeof(buffer)), " (errno ",
                errno_value, ")");
}

}  // namespace ring_keras
