#include "tf_ops/common/logging.h"

#include <unistd.h>

#include <mutex>

namespace ring_keras {
namespace {

struct Logger {
  std::mutex mutex;
  std::string speaker;
  LogLevel lowest = LogLevel::kInfo;
};

Logger& GetLogger() {
  static Logger* logger = new Logger;  // Outlives every thread that logs.
  return *logger;
}

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    default:
      return "ERROR";
  }
}

}  // namespace

void ConfigureLogging(const std::string& speaker, LogLevel lowest) {
  Logger& logger = GetLogger();
  std::lock_guard<std::mutex> lock(logger.mutex);
  logger.speaker = speaker;
  logger.lowest = lowest;
}

void Log(LogLevel level, const std::string& text) {
  Logger& logger = GetLogger();
  std::string line;
  {
    std::lock_guard<std::mutex> lock(logger.mutex);
    if (level < logger.lowest) return;
    line = "[ring_keras" +
           (logger.speaker.empty() ? "" : " " + logger.speaker) + "] " +
           NameOf(level) + ": " + text + "\n";
  }
  // A log line that cannot be written has nowhere to be reported.
  [[maybe_unused]] ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ring_keras
