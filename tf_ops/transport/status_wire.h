// Why a communicator broke, as one rank tells the others: the payload of a
// kAbort frame.
#ifndef RING_KERAS_TRANSPORT_STATUS_WIRE_H_
#define RING_KERAS_TRANSPORT_STATUS_WIRE_H_

#include <string>

#include "tf_ops/common/status.h"

namespace ring_keras {

// `status` is an error.
std::string Encode(const Status& status);
// Always an error: Internal if `bytes` name none.
Status DecodeStatus(const std::string& bytes);

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_STATUS_WIRE_H_
