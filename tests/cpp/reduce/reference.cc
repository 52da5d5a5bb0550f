#include "tests/cpp/reduce/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <type_traits>

namespace ring_keras::testing {
namespace {

// An IEEE type of 16 bits.
struct Layout {
  int mantissa_bits;
  int smallest_exponent;  // Of a normal number.
  int largest_exponent;
};

constexpr Layout kFloat16Layout = {10, -14, 15};
constexpr Layout kBfloat16Layout = {7, -126, 127};

float Decode(Layout layout, uint16_t bits) {
  const int exponent_field = (bits & 0x7fff) >> layout.mantissa_bits;
  const int mantissa = bits & ((1 << layout.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int special = layout.largest_exponent - layout.smallest_exponent + 2;
  if (exponent_field == special) {
    return mantissa == 0 ? static_cast<float>(sign * INFINITY) : NAN;
  }
  const int implicit = exponent_field == 0 ? 0 : 1 << layout.mantissa_bits;
  const int exponent = layout.smallest_exponent + std::max(exponent_field, 1) -
                       1 - layout.mantissa_bits;
  return static_cast<float>(sign * std::ldexp(implicit + mantissa, exponent));
}

uint16_t Encode(Layout layout, float value) {
  const int special = (layout.largest_exponent - layout.smallest_exponent + 2)
                      << layout.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(special | 1 << (layout.mantissa_bits - 1));
  }
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | special);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, layout.smallest_exponent);
  // How many steps of the mantissa, ties to even. A carry into the next power
  // of two needs no care: the number after it is the next in bits as well.
  const int steps = static_cast<int>(
      std::nearbyint(std::ldexp(magnitude, layout.mantissa_bits - exponent)));
  const int bits =
      ((exponent - layout.smallest_exponent) << layout.mantissa_bits) + steps;
  return static_cast<uint16_t>(sign | std::min(bits, special));
}

struct Float16 {
  using Wide = float;
  uint16_t bits;
  static Float16 From(float x) { return {Encode(kFloat16Layout, x)}; }
  float Widen() const { return Decode(kFloat16Layout, bits); }
};

struct Bfloat16 {
  using Wide = float;
  uint16_t bits;
  static Bfloat16 From(float x) { return {Encode(kBfloat16Layout, x)}; }
  float Widen() const { return Decode(kBfloat16Layout, bits); }
};

template <typename T>
struct Plain {
  using Wide = T;
  T value;
  static Plain From(T x) {
    if (x != x) return {std::numeric_limits<T>::quiet_NaN()};
    return {x};
  }
  T Widen() const { return value; }
};

// Calls `function` with a value of the type that stands for `dtype`.
template <typename F>
auto Visit(DataType dtype, F function) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kBool:
      return function(Plain<uint8_t>{});
    case DataType::kInt8:
      return function(Plain<int8_t>{});
    case DataType::kUint16:
      return function(Plain<uint16_t>{});
    case DataType::kInt16:
      return function(Plain<int16_t>{});
    case DataType::kInt32:
      return function(Plain<int32_t>{});
    case DataType::kInt64:
      return function(Plain<int64_t>{});
    case DataType::kFloat16:
      return function(Float16{});
    case DataType::kBfloat16:
      return function(Bfloat16{});
    case DataType::kFloat32:
      return function(Plain<float>{});
    case DataType::kFloat64:
      break;
  }
  return function(Plain<double>{});
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        return a + b;
      case ReduceOp::kProduct:
        return a * b;
      case ReduceOp::kMin:
        if (std::isnan(a) || std::isnan(b)) return NAN;
        if (a == b) return std::signbit(a) ? a : b;
        return a < b ? a : b;
      case ReduceOp::kMax:
        if (std::isnan(a) || std::isnan(b)) return NAN;
        if (a == b) return std::signbit(a) ? b : a;
        return a > b ? a : b;
    }
  } else {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        return static_cast<T>(left + right);
      case ReduceOp::kProduct:
        return static_cast<T>(left * right);
      case ReduceOp::kMin:
        return std::min(a, b);
      case ReduceOp::kMax:
        return std::max(a, b);
    }
  }
  return a;
}

template <typename T>
T Times(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    const double product = std::trunc(static_cast<double>(value) * factor);
    if (std::isnan(product)) return 0;
    if (product < static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    // The largest int64 becomes 2^63 as a double: compare before converting.
    if (product >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    return static_cast<T>(product);
  }
}

template <typename T>
T Load(const void* memory, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(memory) + i * sizeof(T),
              sizeof(T));
  return value;
}

template <typename T>
void Store(Bytes& memory, size_t i, T value) {
  std::memcpy(memory.data() + i * sizeof(T), &value, sizeof(T));
}

uint64_t BitsAt(DataType dtype, const void* memory, size_t i) {
  uint64_t bits = 0;  // Little-endian, as every machine that runs these tests.
  std::memcpy(&bits,
              static_cast<const unsigned char*>(memory) + i * SizeOf(dtype),
              SizeOf(dtype));
  return bits;
}

// Bit patterns at the edges of a float with this many bits in its fields.
std::vector<uint64_t> SpecialBits(int mantissa_bits, int exponent_bits) {
  const uint64_t one = 1;
  const uint64_t infinity = ((one << exponent_bits) - 1) << mantissa_bits;
  const uint64_t smallest_normal = one << mantissa_bits;
  const uint64_t quiet = one << (mantissa_bits - 1);
  const uint64_t unit = ((one << (exponent_bits - 1)) - 1) << mantissa_bits;
  std::vector<uint64_t> bits = {0,
                                1,
                                smallest_normal - 1,
                                smallest_normal,
                                unit,
                                unit + 1,
                                infinity - 1,
                                infinity,
                                infinity | quiet,
                                infinity | quiet | 3,
                                infinity | 1};
  const size_t positive_count = bits.size();
  for (size_t i = 0; i < positive_count; ++i) {
    bits.push_back(bits[i] | one << (mantissa_bits + exponent_bits));
  }
  return bits;
}

std::vector<uint64_t> SpecialBits(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return SpecialBits(10, 5);
    case DataType::kBfloat16:
      return SpecialBits(7, 8);
    case DataType::kFloat32:
      return SpecialBits(23, 8);
    case DataType::kFloat64:
      return SpecialBits(52, 11);
    default:
      return {0, 1, ~uint64_t{0}, uint64_t{1} << (8 * SizeOf(dtype) - 1)};
  }
}

constexpr size_t kEndBytes = 64;
constexpr unsigned char kEndByte = 0xa5;

}  // namespace

std::vector<const reduce::KernelTable*> RunnableTables() {
  std::vector<const reduce::KernelTable*> tables;
  for (const char* name : {"scalar", "avx2", "avx512", "neon"}) {
    if (const auto* table = reduce::FindKernels(name)) tables.push_back(table);
  }
  return tables;
}

std::vector<DataType> AllDataTypes() {
  std::vector<DataType> dtypes;
  for (int i = 0; i < kDataTypeCount; ++i) {
    dtypes.push_back(static_cast<DataType>(i));
  }
  return dtypes;
}

std::vector<ReduceOp> AllReduceOps() {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kReduceOpCount; ++i) {
    ops.push_back(static_cast<ReduceOp>(i));
  }
  return ops;
}

Bytes RandomElements(DataType dtype, size_t count, uint32_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<uint64_t> specials = SpecialBits(dtype);
  const size_t size = SizeOf(dtype);
  Bytes elements(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    const uint64_t kind = random() % 4;
    if (dtype == DataType::kBool) {
      bits &= 1;
    } else if (kind == 0) {
      bits = specials[random() % specials.size()];
    } else if (kind == 1 && IsFloatingPoint(dtype)) {
      // Of size 1 to 4, so that sums carry, cancel and tie.
      const double value = 1.0 + static_cast<double>(random() % 3000) / 1000;
      Visit(dtype, [&](auto zero) {
        const auto element =
            zero.From(static_cast<typename decltype(zero)::Wide>(value));
        std::memcpy(&bits, &element, sizeof(element));
      });
    }
    std::memcpy(elements.data() + i * size, &bits, size);
  }
  return elements;
}

Bytes ReferenceReduce(DataType dtype, ReduceOp op,
                      const std::vector<const void*>& sources, size_t count) {
  Bytes out(count * SizeOf(dtype));
  Visit(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < count; ++i) {
      auto value = Load<T>(sources[0], i).Widen();
      for (size_t j = 1; j < sources.size(); ++j) {
        value = Combine(op, value, Load<T>(sources[j], i).Widen());
      }
      Store(out, i, T::From(value));
    }
  });
  return out;
}

Bytes ReferenceScale(DataType dtype, const Bytes& in, double factor) {
  Bytes out(in.size());
  Visit(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < in.size() / sizeof(T); ++i) {
      Store(out, i, T::From(Times(Load<T>(in.data(), i).Widen(), factor)));
    }
  });
  return out;
}

std::string FirstDifference(DataType dtype, const Bytes& expected,
                            const void* got) {
  if (expected.empty() ||
      std::memcmp(expected.data(), got, expected.size()) == 0) {
    return "";
  }
  const size_t count = expected.size() / SizeOf(dtype);
  size_t i = 0;
  while (i < count &&
         BitsAt(dtype, expected.data(), i) == BitsAt(dtype, got, i)) {
    ++i;
  }
  std::ostringstream text;
  text << NameOf(dtype) << " element " << i << " of " << count << std::hex
       << ": expected 0x" << BitsAt(dtype, expected.data(), i) << ", got 0x"
       << BitsAt(dtype, got, i);
  return text.str();
}

Buffer::Buffer(size_t nbytes, size_t misalignment)
    : storage_(nbytes + misalignment + 64 + kEndBytes, kEndByte),
      nbytes_(nbytes) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  data_ = storage_.data() + (64 - address % 64) % 64 + misalignment;
}

Buffer::Buffer(const Bytes& content, size_t misalignment)
    : Buffer(content.size(), misalignment) {
  std::copy(content.begin(), content.end(), data_);
}

bool Buffer::IsEndIntact() const {
  return std::all_of(data_ + nbytes_, data_ + nbytes_ + kEndBytes,
                     [](unsigned char byte) { return byte == kEndByte; });
}

}  // namespace ring_keras::testing
