#include "tf_ops/transport/relayed_frame.h"

#include <cstring>

namespace ring_keras {
namespace {

template <typename T>
void Put(std::string* bytes, const T& value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void Get(const std::string& bytes, size_t* at, T* value) {
  std::memcpy(value, bytes.data() + *at, sizeof(*value));
  *at += sizeof(*value);
}

bool MayBeRelayed(FrameType type) {
  return type == FrameType::kAnnouncement || type == FrameType::kAbort ||
         type == FrameType::kGivenUp || type == FrameType::kDump ||
         type == FrameType::kWaiting || type == FrameType::kDebugged ||
         type == FrameType::kAwaited;
}

}  // namespace

std::string Encode(const RelayedFrame& frame) {
  std::string bytes;
  Put(&bytes, frame.origin);
  Put(&bytes, frame.type);
  Put(&bytes, frame.key);
  return bytes + frame.payload;
}

StatusOr<RelayedFrame> DecodeRelayedFrame(const std::string& bytes) {
  RelayedFrame frame;
  size_t at = 0;
  if (bytes.size() >= kRelayBytes) {
    Get(bytes, &at, &frame.origin);
    Get(bytes, &at, &frame.type);
    Get(bytes, &at, &frame.key);
  }
  if (at != kRelayBytes || !MayBeRelayed(frame.type)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a frame that was passed on cannot be read from ",
                         bytes.size(), " bytes"));
  }
  frame.payload = bytes.substr(at);
  return frame;
}

}  // namespace ring_keras
