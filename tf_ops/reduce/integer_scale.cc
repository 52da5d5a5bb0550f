// Scaling of integers: rare (a prescale factor on counts), so not vectorized by
// hand.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tf_ops/common/data_type.h"
#include "tf_ops/reduce/float_mode.h"
#include "tf_ops/reduce/kernel_table.h"

namespace ring_keras::reduce {
namespace {

// Rounds toward zero; what does not fit becomes the nearest limit, and NaN 0,
// because the language leaves them to the processor.
template <typename T>
T Truncate(double value) {
  // One past the largest T, which is a power of two and so exact.
  constexpr double kEnd =
      2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  constexpr double kLowest =
      static_cast<double>(std::numeric_limits<T>::lowest());
  if (value >= kEnd) return std::numeric_limits<T>::max();
  if (value <= kLowest) return std::numeric_limits<T>::lowest();
  return value == value ? static_cast<T>(value) : T{0};
}

// No alignment is required, hence memcpy.
template <typename T>
void ScaleAs(void* out, const void* in, double factor, size_t count) {
  const StandardFloatMode mode;
  const auto* source = static_cast<const unsigned char*>(in);
  auto* target = static_cast<unsigned char*>(out);
  for (size_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, source + i * sizeof(T), sizeof(T));
    value = Truncate<T>(static_cast<double>(value) * factor);
    __builtin_memcpy(target + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

void ScaleIntegers(DataType dtype, void* out, const void* in, double factor,
                   size_t count) {
  switch (dtype) {
    case DataType::kUint8:
      return ScaleAs<uint8_t>(out, in, factor, count);
    case DataType::kInt8:
      return ScaleAs<int8_t>(out, in, factor, count);
    case DataType::kUint16:
      return ScaleAs<uint16_t>(out, in, factor, count);
    case DataType::kInt16:
      return ScaleAs<int16_t>(out, in, factor, count);
    case DataType::kInt32:
      return ScaleAs<int32_t>(out, in, factor, count);
    case DataType::kInt64:
      return ScaleAs<int64_t>(out, in, factor, count);
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
    case DataType::kBool:
      return;
  }
}

}  // namespace ring_keras::reduce
