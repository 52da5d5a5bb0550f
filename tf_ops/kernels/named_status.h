// A status of the core's as frameworks carry it.
#ifndef RING_KERAS_KERNELS_NAMED_STATUS_H_
#define RING_KERAS_KERNELS_NAMED_STATUS_H_

#include <string>

#include "tf_ops/common/status.h"

namespace ring_keras {

// absl's numbers, which XLA has too.
enum class FrameworkCode : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

struct NamedStatus {
  FrameworkCode code = FrameworkCode::kOk;
  std::string text;
};

// Where ring_keras has a class of its own, the text begins with its name, by
// which ring_keras/errors.py finds it.
inline NamedStatus Named(const Status& status) {
  const auto named = [&status](FrameworkCode code, const char* name) {
    return NamedStatus{code, StrCat(name, ": ", status.CodedMessage())};
  };
  switch (status.code()) {
    case StatusCode::kOk:
      return {};
    case StatusCode::kInvalidArgument:
      return {FrameworkCode::kInvalidArgument, status.CodedMessage()};
    case StatusCode::kRankMismatch:
      return named(FrameworkCode::kFailedPrecondition, "RankMismatchError");
    case StatusCode::kPeerLost:
    case StatusCode::kPeerStopped:
      return named(FrameworkCode::kUnavailable, "PeerLostError");
    case StatusCode::kDeadlineExceeded:
      return named(FrameworkCode::kDeadlineExceeded, "CollectiveTimeoutError");
    case StatusCode::kNotInitialized:
      return named(FrameworkCode::kFailedPrecondition, "NotInitializedError");
    case StatusCode::kUnauthenticated:
      return named(FrameworkCode::kUnauthenticated, "RingKerasError");
    case StatusCode::kResourceExhausted:
      return named(FrameworkCode::kResourceExhausted, "RingKerasError");
    case StatusCode::kAborted:
    case StatusCode::kInterrupted:
      return named(FrameworkCode::kAborted, "RingKerasError");
    case StatusCode::kInternal:
      break;
  }
  return named(FrameworkCode::kInternal, "RingKerasError");
}

// What has been changed on its way, by nobody's intention.
inline NamedStatus CorruptData(const std::string& message) {
  return {FrameworkCode::kDataLoss,
          "CorruptDataError: " + Prefix(ErrorCode::kCorruptData) + message};
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_NAMED_STATUS_H_
