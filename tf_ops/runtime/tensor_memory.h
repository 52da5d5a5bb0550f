// Memory for the tensors of this process, which the ranks of its host can
// reduce where they lie.
#ifndef RING_KERAS_RUNTIME_TENSOR_MEMORY_H_
#define RING_KERAS_RUNTIME_TENSOR_MEMORY_H_

#include <cstddef>
#include <optional>

#include "tf_ops/common/export.h"

namespace ring_keras {

struct TensorMemory {
  char* data;  // For as long as the process lives.
  size_t nbytes;
  size_t page_nbytes;  // A tensor has such pages for itself.

  bool Holds(const void* at) const {
    const char* byte = static_cast<const char*>(at);
    return byte >= data && byte < data + nbytes;
  }
};

// None where no init() has asked for it, or there is none to be had.
RING_KERAS_EXPORT std::optional<TensorMemory> SharedTensorMemory();

// Whether a range lies there, and peers can reach it.
RING_KERAS_EXPORT bool IsInSharedTensorMemory(const void* data, size_t nbytes);

// What is in use of it; a process that is forked gets copies of that, and none
// of the rest.
RING_KERAS_EXPORT void NoteTensorTaken(void* data, size_t nbytes);
RING_KERAS_EXPORT void NoteTensorReturned(void* data);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_TENSOR_MEMORY_H_
