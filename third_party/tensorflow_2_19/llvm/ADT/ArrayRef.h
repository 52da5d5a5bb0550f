// TensorFlow 2.19's xla/stream_executor/gpu/tma_metadata.h includes LLVM's
// headers, which its wheel does not have. We never make a TmaDescriptor, so
// that names suffice.
#ifndef RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_ARRAYREF_H_
#define RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_ARRAYREF_H_

namespace llvm {

template <typename T>
class ArrayRef {};

}  // namespace llvm

#endif  // RING_KERAS_TENSORFLOW_2_19_LLVM_ADT_ARRAYREF_H_
