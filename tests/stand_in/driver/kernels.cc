#include "tests/stand_in/driver/kernels.h"

#include "tf_ops/cuda/device_code.inc"

namespace ring_keras::stand_in {
namespace {

template <typename Arguments, void (*kKernel)(const Arguments)>
void Run(void* argument, unsigned grid, unsigned block) {
  const auto& arguments = *static_cast<const Arguments*>(argument);
  for (unsigned b = 0; b < grid; ++b) {
    for (unsigned t = 0; t < block; ++t) {
      cuda::blockIdx.x = b;
      cuda::threadIdx.x = t;
      kKernel(arguments);
    }
  }
}

}  // namespace

std::span<const HostKernel> HostKernels() {
  using namespace cuda;
  static constexpr HostKernel kKernels[] = {
#define RING_KERAS_LIST(constant, name, Arguments, ...) \
  {#name, sizeof(Arguments), &Run<Arguments, &name>},
      RING_KERAS_KERNELS(RING_KERAS_LIST)
#undef RING_KERAS_LIST
  };
  return kKernels;
}

}  // namespace ring_keras::stand_in
