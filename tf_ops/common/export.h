// Marks what leaves libring_keras_core.so; all else is hidden.
#ifndef RING_KERAS_COMMON_EXPORT_H_
#define RING_KERAS_COMMON_EXPORT_H_

#define RING_KERAS_EXPORT __attribute__((visibility("default")))

#endif  // RING_KERAS_COMMON_EXPORT_H_
