// Leaves Python's lock to other threads for a while.
#ifndef RING_KERAS_BINDINGS_GIL_H_
#define RING_KERAS_BINDINGS_GIL_H_

#include <pybind11/pybind11.h>
#include <unistd.h>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace ring_keras {

// In place of pybind11's gil_scoped_release. Once the interpreter ends, Python
// before 3.14 ends a daemon thread that asks for the GIL by unwinding its
// stack. That may not pass a destructor, so the process would abort; and what
// it unwinds would give Python objects back without the GIL. So such a thread
// stays here until the process ends, as it does in Python 3.14.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
#if defined(__GLIBCXX__)
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      while (true) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

// What `function` returns. Calls that wait, for peers or for a mutex held by
// one that does, let other Python threads run.
template <typename Function>
auto WithoutGil(Function function) {
  GilRelease release;
  return function();
}

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_GIL_H_
