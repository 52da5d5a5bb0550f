#include "tf_ops/collectives/fused_tensors.h"

namespace ring_keras {

FusedTensors::FusedTensors(const CollectiveArguments& arguments) {
  tensors_.reserve(arguments.inputs.size());
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    const TensorView& input = arguments.inputs[i];
    const size_t begin = nbytes_;
    nbytes_ += ElementCount(input.shape) * SizeOf(arguments.dtype);
    tensors_.push_back({static_cast<const char*>(input.data),
                        static_cast<char*>(arguments.outputs[i]), begin,
                        nbytes_});
  }
}

}  // namespace ring_keras
