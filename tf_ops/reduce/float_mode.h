// Makes floating-point results independent of the calling thread.
#ifndef RING_KERAS_REDUCE_FLOAT_MODE_H_
#define RING_KERAS_REDUCE_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ring_keras::reduce {

// Rounds to nearest even and keeps denormals while it lives. TensorFlow's
// threads, and any thread started by one that loaded a library built with
// -ffast-math, flush denormals: ranks would then differ in their last bits
// according to which thread reduced.
class StandardFloatMode {
 public:
  StandardFloatMode() : saved_(Read()) {
    if ((saved_ & kModeBits) != 0) Write(saved_ & ~kModeBits);
    Fence();
  }
  ~StandardFloatMode() {
    Fence();
    if ((saved_ & kModeBits) != 0) Write(saved_);
  }
  StandardFloatMode(const StandardFloatMode&) = delete;
  StandardFloatMode& operator=(const StandardFloatMode&) = delete;

 private:
  // Keeps loads and stores, and so the arithmetic between, inside the scope.
  static void Fence() { asm volatile("" ::: "memory"); }

#if defined(__x86_64__)
  using Register = uint32_t;
  // Flush to zero, rounding control, denormals are zeros.
  static constexpr Register kModeBits = 0x8000 | 0x6000 | 0x0040;
  static Register Read() { return _mm_getcsr(); }
  static void Write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  // AHP, DN, FZ, RMode (2 bits), FZ16; NEP, AH, FIZ.
  static constexpr Register kModeBits = (0x1full << 22) | (1ull << 19) | 0x7;
  static Register Read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void Write(Register value) {
    asm volatile("msr fpcr, %0" : : "r"(value));
  }
#else
  using Register = uint32_t;
  static constexpr Register kModeBits = 0;
  static Register Read() { return 0; }
  static void Write(Register) {}
#endif

  const Register saved_;
};

}  // namespace ring_keras::reduce

#endif  // RING_KERAS_REDUCE_FLOAT_MODE_H_
