// What the ops RingKerasDepart and RingKerasArrive have in common with and
// without XLA.
#ifndef RING_KERAS_KERNELS_DEPARTURES_H_
#define RING_KERAS_KERNELS_DEPARTURES_H_

#include <string>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// What the op's attribute names; its definition checks the name.
inline CollectiveKind DepartureNamed(const std::string& name) {
  if (name == "allgather") return CollectiveKind::kAllgather;
  if (name == "alltoall") return CollectiveKind::kAlltoall;
  return CollectiveKind::kAllreduce;
}

// Of a slot that is empty.
inline Status NothingDeparted(const std::string& name) {
  return Status(
      StatusCode::kAborted, ErrorCode::kNothingDeparted,
      StrCat("'", name,
             "': its averages are not under way, as after a step that has "
             "failed while it waited for them. Have all ranks call "
             "drop_flights() of the optimizer, and go on."));
}

// Of results that are not those that were expected.
inline Status OtherResults(const std::string& name) {
  return Status(
      StatusCode::kInternal,
      StrCat("'", name,
             "': what has come is not as large as what was expected"));
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_DEPARTURES_H_
