#include "tf_ops/collectives/fused_tensors.h"

namespace ring_keras {

FusedTensors::FusedTensors(const CollectiveArguments& arguments) {
  tensors_.reserve(arguments.inputs.size());
  for (size_t i = 0; i < arguments.inputs.size(); ++i) Add(arguments, i);
}

std::vector<FusedTensors> FusedTensors::ByRoot(
    const CollectiveArguments& arguments, int size) {
  std::vector<FusedTensors> sent(size, FusedTensors());
  for (size_t i = 0; i < arguments.inputs.size(); ++i) {
    sent[RootOf(arguments, i)].Add(arguments, i);
  }
  return sent;
}

void FusedTensors::Add(const CollectiveArguments& arguments, size_t index) {
  const TensorView& input = arguments.inputs[index];
  const size_t begin = nbytes_;
  nbytes_ += ElementCount(input.shape) * SizeOf(arguments.dtype);
  void* output = arguments.outputs.empty() ? nullptr : arguments.outputs[index];
  tensors_.push_back({static_cast<const char*>(input.data),
                      static_cast<char*>(output), begin, nbytes_});
}

}  // namespace ring_keras
