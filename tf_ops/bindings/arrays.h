// NumPy arrays as what collectives read and write.
#ifndef RING_KERAS_BINDINGS_ARRAYS_H_
#define RING_KERAS_BINDINGS_ARRAYS_H_

#include <pybind11/numpy.h>

#include <cstdlib>
#include <memory>

#include "tf_ops/runtime/request.h"

namespace ring_keras {

bool IsContiguous(const pybind11::array& array);

// The array, or a copy that is contiguous.
pybind11::array Contiguous(const pybind11::array& array);

// `out`, if it can take a result like `input`; throws ValueError if not.
pybind11::array CheckedOutput(const pybind11::array& out,
                              const pybind11::array& input);

pybind11::array NewLike(const pybind11::array& array);

// A contiguous array becomes one of the request's inputs.
void AddInput(Request& request, const pybind11::array& array);

// An output whose shape the engine finds out. NumPy does not know of its memory
// while the collective runs: only a thread of Python's may wait for the GIL.
class ArrayOutput {
 public:
  // For elements like those of `input`.
  explicit ArrayOutput(const pybind11::array& input)
      : itemsize_(input.itemsize()) {}

  // It must live until the request is done.
  OutputAllocator Allocator();

  // The array, of that type. Once, after the request has ended well.
  pybind11::array Take(const pybind11::dtype& dtype);

 private:
  struct FreeMemory {
    void operator()(void* memory) const { std::free(memory); }
  };

  const size_t itemsize_;
  std::unique_ptr<void, FreeMemory> memory_;
  Shape shape_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_ARRAYS_H_
