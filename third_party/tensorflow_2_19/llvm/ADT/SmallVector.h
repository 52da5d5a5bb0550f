// See ArrayRef.h.
#ifndef RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_SMALLVECTOR_H_
#define RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_SMALLVECTOR_H_

#include "llvm/ADT/ArrayRef.h"

namespace llvm {

template <typename T>
class SmallVector {
 public:
  operator ArrayRef<T>() const { return {}; }
};

}  // namespace llvm

#endif  // RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_SMALLVECTOR_H_
