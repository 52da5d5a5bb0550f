// What this compiler's headers take from newer C and C++ run-time libraries
// than manylinux_2_28 has: link_stubs.py says what is missing, the linker says
// what is needed, and each library of a release has its own copy, which the
// linker hides
// (--exclude-libs).
//
// Where the machine's own library has the function, that is taken.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>
#include <sstream>

// ---- glibc

extern "C" {

// 2.30
pid_t gettid() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

// 2.32. "No" only means that reference counts are always atomic.
char __libc_single_threaded = 0;

// 2.33; a macro before.
int __fxstat(int version, int descriptor, struct stat* result) noexcept;

int fstat(int descriptor, struct stat* result) noexcept {
#if defined(__x86_64__)
  constexpr int kVersion = 1;
#elif defined(__aarch64__)
  constexpr int kVersion = 0;
#else
#error "Which _STAT_VER does glibc 2.28 have on this processor family?"
#endif
  return __fxstat(kVersion, descriptor, result);
}

// 2.30. An older glibc measures the deadline by a clock that can be set: then
// waits are cut in pieces, so that setting it delays none by more than one.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const timespec* deadline) {
  using ClockWait =
      int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto clock_wait = reinterpret_cast<ClockWait>(
      dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (clock_wait != nullptr) {
    return clock_wait(condition, mutex, clock, deadline);
  }

  constexpr long long kNanoseconds = 1'000'000'000;
  constexpr long long kPiece = kNanoseconds;
  const auto nanoseconds = [](const timespec& time) {
    return time.tv_sec * kNanoseconds + time.tv_nsec;
  };
  timespec now;
  clock_gettime(clock, &now);
  const long long left = nanoseconds(*deadline) - nanoseconds(now);
  clock_gettime(CLOCK_REALTIME, &now);
  const long long wake =
      nanoseconds(now) + (left < kPiece ? (left > 0 ? left : 0) : kPiece);
  const timespec until = {static_cast<time_t>(wake / kNanoseconds),
                          static_cast<long>(wake % kNanoseconds)};
  const int result = pthread_cond_timedwait(condition, mutex, &until);
  // The end of a piece is a wake-up without a cause, which callers expect.
  return result == ETIMEDOUT && left > kPiece ? 0 : result;
}

}  // extern "C"

// ---- libstdc++ of GCC 8

namespace std {

// GLIBCXX_3.4.29
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// GLIBCXX_3.4.26 and 3.4.29
template __cxx11::basic_stringstream<char>::basic_stringstream();
template __cxx11::basic_ostringstream<char>::basic_ostringstream();
template __cxx11::basic_istringstream<char>::basic_istringstream();
template string __cxx11::basic_stringbuf<char>::str() const&;

}  // namespace std

// CXXABI_1.3.13: what copies and destroys a std::exception_ptr. Older libraries
// have the copy constructor and the destructor themselves. They are asked for
// by name, because here the linker would take those that this compiler's
// headers made, which call what is defined below.
namespace {

template <typename Function>
Function* OfLibstdcxx(const char* name) {
  void* library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

extern "C" {

void AddReference(void* pointer) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void ReleaseReference(void* pointer) noexcept
    __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void AddReference(void* pointer) noexcept {
  static auto* const copy_construct = OfLibstdcxx<void(void*, const void*)>(
      "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
  void* copy;  // Never destroyed: its reference stays.
  copy_construct(&copy, pointer);
}

void ReleaseReference(void* pointer) noexcept {
  static auto* const destroy =
      OfLibstdcxx<void(void*)>("_ZNSt15__exception_ptr13exception_ptrD1Ev");
  destroy(pointer);
}

}  // extern "C"
