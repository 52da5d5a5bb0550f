// What the stand-in's NVRTC makes and its driver loads.
#ifndef RING_KERAS_TESTS_STAND_IN_DRIVER_IMAGE_H_
#define RING_KERAS_TESTS_STAND_IN_DRIVER_IMAGE_H_

namespace ring_keras::stand_in {

// How an image begins.
inline constexpr char kImageMark[] = "ring_keras stand-in image of ";

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_DRIVER_IMAGE_H_
