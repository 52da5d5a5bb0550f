// What the first batch of a `fit` holds, as a number that ranks can compare.
#ifndef RING_KERAS_RUNTIME_FIRST_BATCH_H_
#define RING_KERAS_RUNTIME_FIRST_BATCH_H_

#include <cstddef>
#include <cstdint>

#include "tf_ops/common/export.h"

namespace ring_keras {

// FNV-1a of the bytes that have been added.
class RING_KERAS_EXPORT FirstBatchDigest {
 public:
  void Add(const void* data, size_t nbytes);

  // 0: there were none.
  uint64_t value() const { return value_ == kOfNothing ? 0 : value_; }

 private:
  static constexpr uint64_t kOfNothing = 0xcbf29ce484222325;

  uint64_t value_ = kOfNothing;
};

// The next batch that a step gets is to be noted. Of the process, in which one
// `fit` trains at a time, and each begins with this.
RING_KERAS_EXPORT void AwaitFirstBatch();

// Whether it has yet to come.
RING_KERAS_EXPORT bool AwaitsFirstBatch();

// Whether the batch at hand is that one: true to one caller.
RING_KERAS_EXPORT bool ClaimFirstBatch();

RING_KERAS_EXPORT void NoteFirstBatch(const FirstBatchDigest& digest);

// 0: there has been none since the last AwaitFirstBatch, or none with bytes.
RING_KERAS_EXPORT uint64_t FirstBatch();

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_FIRST_BATCH_H_
