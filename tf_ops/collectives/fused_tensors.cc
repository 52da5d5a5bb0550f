#include "tf_ops/collectives/fused_tensors.h"

namespace ring_keras {

FusedTensors::FusedTensors(const CollectiveArguments& arguments) {
  size_t end = 0;
  starts_.push_back(end);
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    inputs_.push_back(static_cast<const char*>(arguments.inputs[i].data));
    outputs_.push_back(static_cast<char*>(arguments.outputs[i]));
    end += ElementCount(arguments.inputs[i].shape) * SizeOf(arguments.dtype);
    starts_.push_back(end);
  }
}

}  // namespace ring_keras
