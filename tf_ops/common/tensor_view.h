// Contiguous host memory that holds a tensor; owns nothing.
#ifndef RING_KERAS_COMMON_TENSOR_VIEW_H_
#define RING_KERAS_COMMON_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ring_keras {

// Sizes of the dimensions, outermost first; empty for a scalar.
using Shape = std::vector<int64_t>;

inline int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  return count;
}

// "[2,3]", as TensorFlow prints a shape.
inline std::string DebugString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ",";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// A smaller tensor is copied by the ranks of a host, not shared where it lies:
// that costs less than to say where.
constexpr size_t kLeastSharedTensorBytes = size_t{32} << 10;

// A tensor that a collective reads.
struct TensorView {
  const void* data = nullptr;
  Shape shape;
};

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_TENSOR_VIEW_H_
