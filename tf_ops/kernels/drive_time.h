// How long threads that are a framework's may be kept.
#ifndef RING_KERAS_KERNELS_DRIVE_TIME_H_
#define RING_KERAS_KERNELS_DRIVE_TIME_H_

namespace ring_keras {

// What such a thread may wait for peers that are in step: about what handing
// the collective to the engine's thread, and its result back, costs.
constexpr double kDriveForS = 100e-6;

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_DRIVE_TIME_H_
