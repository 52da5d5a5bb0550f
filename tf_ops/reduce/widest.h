// Plain loops, compiled once more for the vectors of newer processors.
//
// Only for files that are compiled so that vectors of any width give the same
// bits (CMakeLists.txt), and for code that calls no function of the standard
// library but what the compiler has itself.
#ifndef RING_KERAS_REDUCE_WIDEST_H_
#define RING_KERAS_REDUCE_WIDEST_H_

#define RING_KERAS_INLINE inline __attribute__((always_inline))

namespace ring_keras {
namespace {

#if defined(__x86_64__)
template <typename Body, typename... Arguments>
__attribute__((target("avx2"))) auto RunByAvx2(Arguments... arguments) {
  return Body::Run(arguments...);
}
#endif

// Body::Run, which is to be RING_KERAS_INLINE, by what this processor has.
template <typename Body, typename... Arguments>
auto RunWidest(Arguments... arguments) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return RunByAvx2<Body>(arguments...);
#endif
  return Body::Run(arguments...);
}

}  // namespace
}  // namespace ring_keras

#endif  // RING_KERAS_REDUCE_WIDEST_H_
