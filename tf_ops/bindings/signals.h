// Runs Python's signal handlers while its main thread waits in the core.
#ifndef RING_KERAS_BINDINGS_SIGNALS_H_
#define RING_KERAS_BINDINGS_SIGNALS_H_

namespace ring_keras {

// From here on, for the whole process.
void HandlePythonSignals();

// What a handler raised during a wait of this thread: before one, forgotten;
// after it, thrown. Both need the GIL.
void ForgetRaised();
void ThrowIfHandlerRaised();

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_SIGNALS_H_
