// Frames that other ranks have passed on.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/transport/relayed_frame.h"

namespace ring_keras {

std::vector<std::string> Seeds() {
  return {Encode(RelayedFrame()),
          Encode(RelayedFrame{3, FrameType::kAnnouncement, 77, "payload"})};
}

void FuzzOne(const std::string& input) {
  CheckCanonical(input, DecodeRelayedFrame,
                 [](const RelayedFrame& value) { return Encode(value); });
  const auto decoded = DecodeRelayedFrame(input);
  if (!decoded.ok()) return;
  // One in another would be passed on without end; data are the pair's own.
  FUZZ_CHECK(decoded.value().type != FrameType::kRelayed);
  FUZZ_CHECK(decoded.value().type != FrameType::kData);
}

}  // namespace ring_keras
