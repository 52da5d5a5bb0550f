#include "tf_ops/transport/status_wire.h"

#include <cstdint>

namespace ring_keras {

std::string Encode(const Status& status) {
  return StrCat(static_cast<char>(status.code()), status.CodedMessage());
}

Status DecodeStatus(const std::string& bytes) {
  if (bytes.empty()) return Status(StatusCode::kInternal, "aborted by a peer");
  const auto number = static_cast<uint8_t>(bytes[0]);
  const auto code = static_cast<StatusCode>(number);
  const bool known = code > StatusCode::kOk && code <= StatusCode::kInternal;
  return Status::FromCoded(known ? code : StatusCode::kInternal,
                           bytes.substr(1));
}

}  // namespace ring_keras
