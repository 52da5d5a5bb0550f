// A breath for a loop that waits for another core.
#ifndef RING_KERAS_COMMON_PAUSE_H_
#define RING_KERAS_COMMON_PAUSE_H_

namespace ring_keras {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most cores.
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_PAUSE_H_
