// Registering an op that reduces for GPUs.
#ifndef RING_KERAS_KERNELS_GPU_KERNELS_H_
#define RING_KERAS_KERNELS_GPU_KERNELS_H_

#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"

// A kernel for tensors in GPU memory, and one before it for those of types that
// NCCL cannot reduce, which TensorFlow copies to host memory and back.
//
// `factors` and `tensors` are chains of HostMemory("argument"): numbers that
// the host needs before the collective starts, and the tensors.
#define RING_KERAS_REGISTER_GPU_REDUCTION(op, kernel, factors, tensors)    \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_GPU) factors, \
                          kernel);                                         \
  RING_KERAS_REGISTER_STAGED_(op, kernel, factors tensors, uint16_t)       \
  RING_KERAS_REGISTER_STAGED_(op, kernel, factors tensors, int16_t)        \
  RING_KERAS_REGISTER_STAGED_(op, kernel, factors tensors, bool)

#define RING_KERAS_REGISTER_STAGED_(op, kernel, host_memory, type)    \
  REGISTER_KERNEL_BUILDER(Name(op)                                    \
                              .Device(tensorflow::DEVICE_GPU)         \
                              .Priority(1)                            \
                              .TypeConstraint<type>("T") host_memory, \
                          kernel);

#endif  // RING_KERAS_KERNELS_GPU_KERNELS_H_
