// Device memory: pages of the host that nobody can touch once they are freed.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_MEMORY_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_MEMORY_H_

#include <cstddef>
#include <optional>

#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

enum class MemoryKind { kDevice, kPinnedHost };

// Filled with a pattern, so that nobody relies on zeros. Null if there is none.
RING_KERAS_EXPORT void* Allocate(MemoryKind kind, int device, size_t size);

// False if `memory` is not what Allocate gave and nobody freed since.
RING_KERAS_EXPORT bool Free(MemoryKind kind, void* memory);

struct MemoryPlace {
  MemoryKind kind;
  int device;
};

// Where `pointer` points to, if it is memory of ours and not freed.
RING_KERAS_EXPORT std::optional<MemoryPlace> FindMemory(const void* pointer);

// Ends the process with a message that names `user`, unless all of it lies in
// one piece of our memory that is not freed.
RING_KERAS_EXPORT void CheckAccess(const void* memory, size_t size,
                                   const char* user);

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_MEMORY_H_
