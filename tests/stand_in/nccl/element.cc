#include "tests/stand_in/nccl/element.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/stand_in/nccl_abi.h"

namespace ring_keras::stand_in {
namespace {

struct Float16 {
  uint16_t bits;

  explicit operator float() const {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    const uint32_t exponent = bits >> 10 & 0x1f;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0) {
      const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
      return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
  }

  static Float16 From(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7fff)};
    if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (magnitude < 0x38800000) {  // Not normal: a multiple of 2^-24.
      const float steps = std::nearbyint(std::ldexp(std::fabs(value), 24));
      return {static_cast<uint16_t>(sign | static_cast<uint16_t>(steps))};
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)))};
  }
};

struct Bfloat16 {
  uint16_t bits;

  explicit operator float() const {
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }

  static Bfloat16 From(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  }
};

// What is computed in: float for the short floats, unsigned for integers, so
// that they wrap.
template <typename T>
auto Widen(T value) {
  if constexpr (std::is_class_v<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <typename T, typename W>
T Narrow(W value) {
  if constexpr (std::is_class_v<T>) {
    return T::From(value);
  } else {
    return static_cast<T>(value);
  }
}

template <typename W>
W Apply(int op, W a, W b) {
  if (op == kNcclMax) return std::max(a, b);
  if (op == kNcclMin) return std::min(a, b);
  if constexpr (std::is_integral_v<W>) {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(b);
    return static_cast<W>(op == kNcclProd ? left * right : left + right);
  } else {
    return op == kNcclProd ? a * b : a + b;
  }
}

template <typename F>
void Visit(int dtype, F function) {
  switch (dtype) {
    case kNcclInt8:
      return function(int8_t{});
    case kNcclUint8:
      return function(uint8_t{});
    case kNcclInt32:
      return function(int32_t{});
    case kNcclUint32:
      return function(uint32_t{});
    case kNcclInt64:
      return function(int64_t{});
    case kNcclUint64:
      return function(uint64_t{});
    case kNcclFloat16:
      return function(Float16{});
    case kNcclFloat32:
      return function(float{});
    case kNcclFloat64:
      return function(double{});
    case kNcclBfloat16:
      return function(Bfloat16{});
    default:
      return;
  }
}

template <typename T>
T Load(const void* from, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * sizeof(T),
              sizeof(T));
  return value;
}

template <typename T>
void Store(void* to, size_t index, T value) {
  std::memcpy(static_cast<char*>(to) + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

size_t ElementSize(int dtype) {
  size_t size = 0;
  Visit(dtype, [&](auto element) { size = sizeof(element); });
  return size;
}

const char* ElementName(int dtype) {
  constexpr const char* kNames[] = {"int8",    "uint8",   "int32",   "uint32",
                                    "int64",   "uint64",  "float16", "float32",
                                    "float64", "bfloat16"};
  return ElementSize(dtype) == 0 ? "unknown" : kNames[dtype];
}

void Combine(int dtype, int op, void* sum, const void* other, size_t count) {
  Visit(dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      const auto value =
          Apply(op, Widen(Load<T>(sum, i)), Widen(Load<T>(other, i)));
      Store(sum, i, Narrow<T>(value));
    }
  });
}

void SetOne(int dtype, void* value) {
  Visit(dtype, [&](auto element) {
    using T = decltype(element);
    using W = decltype(Widen(element));
    Store(value, 0, Narrow<T>(W{1}));
  });
}

void Multiply(int dtype, void* values, size_t count, const Scalar& factor) {
  Visit(dtype, [&](auto element) {
    using T = decltype(element);
    const auto by = Widen(Load<T>(factor.bits, 0));
    for (size_t i = 0; i < count; ++i) {
      const auto value = Apply(kNcclProd, Widen(Load<T>(values, i)), by);
      Store(values, i, Narrow<T>(value));
    }
  });
}

void Divide(int dtype, void* values, size_t count, int divisor) {
  Visit(dtype, [&](auto element) {
    using T = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      const auto value = Widen(Load<T>(values, i));
      using W = std::remove_const_t<decltype(value)>;
      Store(values, i, Narrow<T>(value / static_cast<W>(divisor)));
    }
  });
}

}  // namespace ring_keras::stand_in
