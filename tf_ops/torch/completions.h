// Threads on which torch hears that a collective has ended.
#ifndef RING_KERAS_TORCH_COMPLETIONS_H_
#define RING_KERAS_TORCH_COMPLETIONS_H_

#include <chrono>
#include <functional>

namespace ring_keras::torch_backend {

// Runs `task` on a thread that does nothing else, a new one if there is none.
//
// What follows the end of a collective may wait: for Python's lock, or, in a
// callback of a future, for another collective. The engine's thread must not.
void RunOnThread(std::function<void()> task);

// The same at that time.
void RunAt(std::chrono::steady_clock::time_point when,
           std::function<void()> task);

// Waits for the tasks that are under way. Later ones are never run: the
// interpreter ends, and what they keep may be Python's.
void EndThreads();
// Whether it has been called: a task that waits must end.
bool AreThreadsEnding();

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_COMPLETIONS_H_
