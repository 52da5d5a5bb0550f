#include "tf_ops/common/error_code.h"

namespace ring_keras {
namespace {

constexpr char kOpening[] = "[RK";
constexpr size_t kOpeningBytes = sizeof(kOpening) - 1;
constexpr size_t kDigits = 3;
constexpr char kClosing[] = "] ";
constexpr size_t kClosingBytes = sizeof(kClosing) - 1;

}  // namespace

std::string Prefix(ErrorCode code) {
  if (code == ErrorCode::kNone) return "";
  return kOpening + std::to_string(static_cast<int>(code)) + kClosing;
}

ErrorCode TakePrefix(std::string* message) {
  constexpr size_t kBytes = kOpeningBytes + kDigits + kClosingBytes;
  if (message->size() < kBytes ||
      message->compare(0, kOpeningBytes, kOpening) != 0 ||
      message->compare(kOpeningBytes + kDigits, kClosingBytes, kClosing) != 0) {
    return ErrorCode::kNone;
  }
  int number = 0;
  for (size_t i = kOpeningBytes; i < kOpeningBytes + kDigits; ++i) {
    const char digit = (*message)[i];
    if (digit < '0' || digit > '9') return ErrorCode::kNone;
    number = 10 * number + (digit - '0');
  }
  if (number < 100) return ErrorCode::kNone;
  message->erase(0, kBytes);
  return static_cast<ErrorCode>(number);
}

}  // namespace ring_keras
