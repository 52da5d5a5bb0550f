// Integers and strings as bytes, little-endian, for the fixed formats here.
#ifndef RING_KERAS_RENDEZVOUS_WIRE_H_
#define RING_KERAS_RENDEZVOUS_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace ring_keras::rendezvous {

template <typename Integer>
void AppendInteger(std::string& out, Integer value) {
  auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(static_cast<char>(bits >> (8 * i) & 0xff));
  }
}

// Reads `Integer` at `offset`; the caller has checked that it is there.
template <typename Integer>
Integer IntegerAt(std::string_view bytes, size_t offset) {
  std::make_unsigned_t<Integer> bits = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[offset + i]);
    bits = static_cast<std::make_unsigned_t<Integer>>(
        bits | static_cast<std::make_unsigned_t<Integer>>(byte) << (8 * i));
  }
  return static_cast<Integer>(bits);
}

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_WIRE_H_
