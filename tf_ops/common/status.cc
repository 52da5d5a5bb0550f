#include "tf_ops/common/status.h"

#include <cstring>
#include <locale>
#include <sstream>

namespace ring_keras {

void str_cat::Append(std::string* text, double number) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << number;
  *text += out.str();
}

ErrorCode DefaultErrorCode(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return ErrorCode::kNone;
    case StatusCode::kInvalidArgument:
      return ErrorCode::kBadArgument;
    case StatusCode::kRankMismatch:
      return ErrorCode::kCannotTakePart;
    case StatusCode::kPeerLost:
      return ErrorCode::kRankLost;
    case StatusCode::kPeerStopped:
      return ErrorCode::kRankGaveUp;
    case StatusCode::kDeadlineExceeded:
      return ErrorCode::kCollectiveTimeout;
    case StatusCode::kNotInitialized:
      return ErrorCode::kNotInitialized;
    case StatusCode::kUnauthenticated:
      return ErrorCode::kNotAdmitted;
    case StatusCode::kResourceExhausted:
      return ErrorCode::kOutOfMemory;
    case StatusCode::kAborted:
      return ErrorCode::kShutDown;
    case StatusCode::kInterrupted:
      return ErrorCode::kInterrupted;
    case StatusCode::kInternal:
      break;
  }
  return ErrorCode::kSystemFailed;
}

Status Status::FromCoded(StatusCode code, std::string coded_message) {
  const ErrorCode error_code = TakePrefix(&coded_message);
  if (error_code == ErrorCode::kNone) {
    return Status(code, std::move(coded_message));
  }
  return Status(code, error_code, std::move(coded_message));
}

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
