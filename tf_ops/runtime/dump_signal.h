// SIGUSR2: whoever sends it wants to know what this process is doing.
//
// Python's faulthandler writes the stacks of all threads when it comes, which
// needs no lock of Python's, and then calls what was there before it: this.
#ifndef RING_KERAS_RUNTIME_DUMP_SIGNAL_H_
#define RING_KERAS_RUNTIME_DUMP_SIGNAL_H_

#include "tf_ops/common/export.h"

namespace ring_keras {

// Handles the signal from now on, and has whoever handled it before do so too.
RING_KERAS_EXPORT void ListenForDumpSignal();

// Whether it has come from outside since the last call.
bool TakeDumpRequest();

// Sends it to this thread, for the stacks alone; nothing if nobody listens.
void WriteStacks();

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_DUMP_SIGNAL_H_
