#include "tests/stand_in/device/log.h"

#include <mutex>
#include <string>

#include "tests/stand_in/stand_in.h"

namespace ring_keras::stand_in {
namespace {

struct LaunchLog {
  std::mutex mutex;
  std::string text;

  static LaunchLog& Get() {
    static auto* log = new LaunchLog;
    return *log;
  }
};

}  // namespace

void Log(const std::string& line) {
  LaunchLog& log = LaunchLog::Get();
  std::lock_guard lock(log.mutex);
  log.text += line;
  log.text += '\n';
}

}  // namespace ring_keras::stand_in

using ring_keras::stand_in::LaunchLog;

const char* RingKerasStandInLog() {
  thread_local std::string text;
  LaunchLog& log = LaunchLog::Get();
  std::lock_guard lock(log.mutex);
  text = log.text;
  return text.c_str();
}

void RingKerasStandInClearLog() {
  LaunchLog& log = LaunchLog::Get();
  std::lock_guard lock(log.mutex);
  log.text.clear();
}
