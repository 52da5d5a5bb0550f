// The devices, and which one each thread uses.
#ifndef RING_KERAS_TESTS_STAND_IN_DEVICE_DEVICE_H_
#define RING_KERAS_TESTS_STAND_IN_DEVICE_DEVICE_H_

#include "tf_ops/common/export.h"

namespace ring_keras::stand_in {

// Devices that this process sees.
RING_KERAS_EXPORT int DeviceCount();

// What CUDA_VISIBLE_DEVICES calls `device`: the same device on every process.
RING_KERAS_EXPORT int PhysicalDevice(int device);

// Makes `device` the calling thread's; a CudaError.
RING_KERAS_EXPORT int SetCurrentDevice(int device);

// The calling thread's device, 0 if it chose none.
RING_KERAS_EXPORT int CurrentDevice();

// Whether the calling thread may call the driver, which, unlike the runtime,
// makes no context by itself. Calls of the runtime that need one make it.
RING_KERAS_EXPORT bool HasContext();
RING_KERAS_EXPORT void MakeContext();

// Notes a call's result for cudaGetLastError, and gives it back.
RING_KERAS_EXPORT int Returned(int error);
RING_KERAS_EXPORT int LastError(bool clear);

// Set by RingKerasStandInFailDevice; kCudaSuccess otherwise.
RING_KERAS_EXPORT int DeviceFault();

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DEVICE_DEVICE_H_
