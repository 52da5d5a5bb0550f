// Lets the program handle its signals while one of its threads waits here.
//
// The core knows no Python; whoever does says how signals are handled.
#ifndef RING_KERAS_RUNTIME_SIGNALS_H_
#define RING_KERAS_RUNTIME_SIGNALS_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "tf_ops/common/export.h"

namespace ring_keras {

// How often a thread that waits for a collective looks for signals.
inline constexpr std::chrono::milliseconds kSignalInterval{50};

// Runs the handlers of signals that have come, if this is the thread to do so;
// true if one of them asks the wait to end. May take long, and may call
// anything of ours, so it is called without a lock, and never by a driver.
using SignalHandling = bool (*)();

// For the whole process; until then no signal is handled.
RING_KERAS_EXPORT void SetSignalHandling(SignalHandling handling);
RING_KERAS_EXPORT bool HandleSignals();

// Waits on `changed` until `is_over()`, which is called with the lock, and
// handles signals meanwhile, without it. A handler that asks the wait to end
// interrupts the communicator, by which it is over soon.
RING_KERAS_EXPORT void WaitHandlingSignals(std::unique_lock<std::mutex>& lock,
                                           std::condition_variable& changed,
                                           const std::function<bool()>& is_over,
                                           int communicator_id);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_SIGNALS_H_
