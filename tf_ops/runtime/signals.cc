#include "tf_ops/runtime/signals.h"

#include <atomic>

namespace ring_keras {
namespace {

std::atomic<SignalHandling> handling_of_process{nullptr};

}  // namespace

void SetSignalHandling(SignalHandling handling) {
  handling_of_process.store(handling);
}

bool HandleSignals() {
  const SignalHandling handling = handling_of_process.load();
  return handling != nullptr && handling();
}

}  // namespace ring_keras
