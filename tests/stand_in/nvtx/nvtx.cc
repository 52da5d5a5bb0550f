// libnvToolsExt: writes down which ranges begin and end.
#include <atomic>
#include <cstdint>
#include <string>

#include "tests/stand_in/device/log.h"

using ring_keras::stand_in::Log;

extern "C" {

RING_KERAS_EXPORT uint64_t nvtxRangeStartA(const char* message) {
  static std::atomic<uint64_t> last{0};
  const uint64_t range = ++last;
  Log("range " + std::to_string(range) + " begins: " + message);
  return range;
}

RING_KERAS_EXPORT void nvtxRangeEnd(uint64_t range) {
  Log("range " + std::to_string(range) + " ends");
}

}  // extern "C"
