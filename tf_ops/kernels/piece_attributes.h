// What the ops that share pieces have as attributes.
#ifndef RING_KERAS_KERNELS_PIECE_ATTRIBUTES_H_
#define RING_KERAS_KERNELS_PIECE_ATTRIBUTES_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/pieces.h"

namespace ring_keras {

struct PieceAttributes {
  // Reports on `construction` what is missing, or not there for each piece.
  explicit PieceAttributes(tensorflow::OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("ends", &pieces.ends));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("wholes", &pieces.wholes));
    OP_REQUIRES_OK(construction, construction->GetAttr("apart", &pieces.own));
    OP_REQUIRES_OK(construction, construction->GetAttr("roots", &roots));
    const size_t count = pieces.ends.size();
    OP_REQUIRES(construction,
                pieces.wholes.size() == count && pieces.own.size() == count &&
                    roots.size() == count,
                absl::InvalidArgumentError(
                    "`ends`, `wholes`, `apart` and `roots` need a number for "
                    "each piece."));
  }

  Pieces pieces;
  std::vector<int64_t> roots;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_PIECE_ATTRIBUTES_H_
