// The result of an operation that can fail: what kind of failure programs have
// to tell apart (StatusCode), its cause (ErrorCode), and a message for people.
//
// The core returns Status and never throws. It becomes an absl::Status in
// kernels/conversions.h and a Python exception in bindings/errors.cc.
#ifndef RING_KERAS_COMMON_STATUS_H_
#define RING_KERAS_COMMON_STATUS_H_

#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tf_ops/common/error_code.h"
#include "tf_ops/common/export.h"

namespace ring_keras {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // This rank's own input is wrong; no peer is involved.
  kRankMismatch,       // Ranks disagree; the communicator stays usable.
  kPeerLost,           // A rank died or left; the communicator is broken.
  kPeerStopped,        // A rank has given up by itself; the same.
  kDeadlineExceeded,   // A rank stayed silent; the communicator is broken.
  kNotInitialized,     // init() has not run, or shutdown() has.
  kUnauthenticated,    // A handshake failed.
  kResourceExhausted,  // Memory, descriptors, or a bound of ours.
  kAborted,            // Shut down while the operation was pending.
  kInterrupted,        // A signal's handler, or shutdown(), ended the wait.
  kInternal,           // A system call failed, or a defect of ours.
};

// The cause where none of its own was given.
RING_KERAS_EXPORT ErrorCode DefaultErrorCode(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : Status(code, DefaultErrorCode(code), std::move(message)) {}
  Status(StatusCode code, ErrorCode error_code, std::string message)
      : code_(code), error_code_(error_code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  // The reverse of CodedMessage(): what another rank has said.
  static Status FromCoded(StatusCode code, std::string coded_message);
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  ErrorCode error_code() const { return error_code_; }
  // Without the error code, so that a message can become part of another.
  const std::string& message() const { return message_; }
  // What people get to see: "[RK201] rank 1 (host ...".
  std::string CodedMessage() const { return Prefix(error_code_) + message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  ErrorCode error_code_ = ErrorCode::kNone;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {}  // NOLINT: implicit
  StatusOr(T value) : value_(std::move(value)) {}          // NOLINT: implicit

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

namespace str_cat {

// Numbers are written as in the "C" locale, whatever the process's is: no
// separators between thousands, a point before a fraction, of which six digits
// are shown.
inline void Append(std::string* text, std::string_view word) { *text += word; }
inline void Append(std::string* text, char letter) { *text += letter; }
RING_KERAS_EXPORT void Append(std::string* text, double number);

template <typename T, typename = std::enable_if_t<std::is_integral_v<T>>>
void Append(std::string* text, T number) {
  char digits[32];
  // A bool is 0 or 1, which to_chars does not take.
  const auto end = std::to_chars(digits, std::end(digits), +number);
  text->append(digits, static_cast<size_t>(end.ptr - digits));
}

}  // namespace str_cat

// Joins words and numbers.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::string text;
  (str_cat::Append(&text, args), ...);
  return text;
}

// What a wait returns whose Deadline::Interrupted() said so.
Status Interrupted();

// The message of `errno_value`, as strerror gives it, with the number.
std::string ErrnoMessage(int errno_value);

#define RING_KERAS_RETURN_IF_ERROR(expression)                      \
  do {                                                              \
    if (::ring_keras::Status status_ = (expression); !status_.ok()) \
      return status_;                                               \
  } while (false)

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_STATUS_H_
