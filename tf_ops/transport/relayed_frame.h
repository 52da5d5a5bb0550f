// A control frame that others pass on to ranks to which its sender has no
// connection; the payload of a kRelayed frame.
#ifndef RING_KERAS_TRANSPORT_RELAYED_FRAME_H_
#define RING_KERAS_TRANSPORT_RELAYED_FRAME_H_

#include <cstdint>
#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/transport/frame.h"

namespace ring_keras {

struct RelayedFrame {
  int32_t origin = -1;  // The rank that has said it.
  FrameType type = FrameType::kAbort;
  uint64_t key = 0;
  std::string payload;
};

std::string Encode(const RelayedFrame& frame);
// InvalidArgument when `bytes` is none.
StatusOr<RelayedFrame> DecodeRelayedFrame(const std::string& bytes);

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_RELAYED_FRAME_H_
