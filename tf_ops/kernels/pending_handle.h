// What travels from a start op to its wait op.
#ifndef RING_KERAS_KERNELS_PENDING_HANDLE_H_
#define RING_KERAS_KERNELS_PENDING_HANDLE_H_

#include <memory>
#include <string>

#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tf_ops/kernels/pending.h"

namespace ring_keras {

// The value of a variant tensor. If the wait never runs, the collective ends
// all the same, and its memory goes with the last handle.
struct PendingHandle {
  std::shared_ptr<Pending> pending;

  // What tensorflow::Variant asks of a value. A collective on its way cannot be
  // written down, so an encoded handle decodes to nothing.
  static std::string TypeName() { return "ring_keras::PendingHandle"; }
  std::string DebugString() const { return TypeName(); }
  void Encode(tensorflow::VariantTensorData* data) const {
    data->set_type_name(TypeName());
  }
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_PENDING_HANDLE_H_
