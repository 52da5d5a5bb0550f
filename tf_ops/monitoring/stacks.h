// The stacks of the program's threads, which only its language can write.
//
// Under the language's lock they stand still while they are read, so a thread
// of the program's waits here, and writes them when it has the lock. If no
// thread gives the lock back for long, one of them is in code that never runs
// any of the language's, and all others wait for the lock or have left it for a
// call of their own: then they stand still as well, and are read without it.
#ifndef RING_KERAS_MONITORING_STACKS_H_
#define RING_KERAS_MONITORING_STACKS_H_

#include <cstdint>
#include <string>

#include "tf_ops/common/export.h"

namespace ring_keras {

// For the program's thread. Without the lock: waits until stacks, or a place,
// are wanted; false: no more will be. Then, with the lock: whether to write
// them, or it took too long to get the lock. And, if so, when they are written.
RING_KERAS_EXPORT bool AwaitStacksWanted();
RING_KERAS_EXPORT bool ClaimStacks();
RING_KERAS_EXPORT void StacksWritten();

// What AskForPlace() was given, which is then forgotten; empty: nothing.
RING_KERAS_EXPORT std::string TakePlaceWanted();

// From now on there is a thread that writes them, until EndStacks(), which also
// has AwaitStacksWanted() return. `without_lock(argument)` writes them if that
// thread cannot; any thread may call it. False: it still does after ten
// seconds.
RING_KERAS_EXPORT void BeginStacks(void (*without_lock)(int), int argument);
RING_KERAS_EXPORT bool EndStacks();

enum class StacksAnswer : uint8_t { kWritten, kLockHeld, kNobody };

// Has them written; returns when they are, or when nobody has begun to.
RING_KERAS_EXPORT StacksAnswer AskForStacks();
// After an answer of kLockHeld.
void WriteStacksWithoutLock();

// Has the program's thread log `why`, and behind that where the program stands.
// Returns at once; nothing comes of it if there is no such thread.
RING_KERAS_EXPORT void AskForPlace(std::string why);

}  // namespace ring_keras

#endif  // RING_KERAS_MONITORING_STACKS_H_
