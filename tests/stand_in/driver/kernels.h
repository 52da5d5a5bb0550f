// The device code, compiled for the host.
#ifndef RING_KERAS_TESTS_STAND_IN_DRIVER_KERNELS_H_
#define RING_KERAS_TESTS_STAND_IN_DRIVER_KERNELS_H_

#include <cstddef>
#include <span>

namespace ring_keras::stand_in {

struct HostKernel {
  const char* name;
  size_t argument_nbytes;
  // All threads of all blocks, one after the other.
  void (*run)(void* argument, unsigned grid, unsigned block);
};

std::span<const HostKernel> HostKernels();

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DRIVER_KERNELS_H_
