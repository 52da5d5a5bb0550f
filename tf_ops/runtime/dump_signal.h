// SIGUSR2: whoever sends it wants to know what this process is doing.
#ifndef RING_KERAS_RUNTIME_DUMP_SIGNAL_H_
#define RING_KERAS_RUNTIME_DUMP_SIGNAL_H_

#include "tf_ops/common/export.h"

namespace ring_keras {

// Handles the signal from now on, and has whoever handled it before do so too.
RING_KERAS_EXPORT void ListenForDumpSignal();

// Whether it has come since the last call.
bool TakeDumpRequest();

// Who has set a handler of the signal's since ListenForDumpSignal() writes the
// stacks of all threads by it: from now on it is called for that only
// (monitoring/stacks.h).
RING_KERAS_EXPORT void BeginStacksByHandler();

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_DUMP_SIGNAL_H_
