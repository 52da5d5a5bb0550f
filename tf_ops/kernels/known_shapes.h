// Outputs whose shapes are an attribute of the op: `shapes`.
#ifndef RING_KERAS_KERNELS_KNOWN_SHAPES_H_
#define RING_KERAS_KERNELS_KNOWN_SHAPES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/common/status.h"

namespace ring_keras {

// An error names `op` if one of them is not known.
inline absl::Status ReadKnownShapes(
    tensorflow::OpKernelConstruction* construction, const std::string& op,
    std::vector<tensorflow::TensorShape>* shapes) {
  std::vector<tensorflow::PartialTensorShape> partial;
  const absl::Status status = construction->GetAttr("shapes", &partial);
  if (!status.ok()) return status;
  for (const tensorflow::PartialTensorShape& shape : partial) {
    tensorflow::TensorShape known;
    if (!shape.AsTensorShape(&known)) {
      return absl::InvalidArgumentError(StrCat(
          op, ": expected shapes that are known, got ", shape.DebugString()));
    }
    shapes->push_back(known);
  }
  return absl::OkStatus();
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_KNOWN_SHAPES_H_
