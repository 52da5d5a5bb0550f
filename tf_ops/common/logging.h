// Log lines on standard error: "[ring_keras rank 1] WARNING: text".
#ifndef RING_KERAS_COMMON_LOGGING_H_
#define RING_KERAS_COMMON_LOGGING_H_

#include <string>

#include "tf_ops/common/export.h"

namespace ring_keras {

enum class LogLevel {
  kDebug = 0,
  kInfo = 1,
  kWarning = 2,
  kError = 3,
  kOff = 4
};

// Who speaks ("rank 1", "store"), and the lowest level that is printed.
void ConfigureLogging(const std::string& speaker, LogLevel lowest);

// Prints one line with one write, so that lines of processes do not mix.
RING_KERAS_EXPORT void Log(LogLevel level, const std::string& text);

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_LOGGING_H_
