// Element types of the tensors that collectives move.
#ifndef RING_KERAS_COMMON_DATA_TYPE_H_
#define RING_KERAS_COMMON_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ring_keras {

// The numbers travel between ranks: append, never renumber.
enum class DataType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBfloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kBool = 10,
};

constexpr int kDataTypeCount = 11;

// Bytes of one element.
constexpr size_t SizeOf(DataType dtype) {
  constexpr size_t kSizes[kDataTypeCount] = {1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1};
  return kSizes[static_cast<int>(dtype)];
}

// NumPy's and TensorFlow's name of the type, for messages.
constexpr const char* NameOf(DataType dtype) {
  constexpr const char* kNames[kDataTypeCount] = {
      "uint8",   "int8",     "uint16",  "int16",   "int32", "int64",
      "float16", "bfloat16", "float32", "float64", "bool"};
  return kNames[static_cast<int>(dtype)];
}

// The type of that name, if any.
constexpr std::optional<DataType> DataTypeNamed(std::string_view name) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    if (name == NameOf(static_cast<DataType>(i))) {
      return static_cast<DataType>(i);
    }
  }
  return std::nullopt;
}

constexpr bool IsFloatingPoint(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

constexpr bool Is16BitFloat(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
}

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_DATA_TYPE_H_
