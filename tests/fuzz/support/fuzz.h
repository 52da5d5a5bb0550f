// What the fuzz targets share. A target is one file:
//
//   std::vector<std::string> Seeds();              // Good inputs, by encoders.
//   void FuzzOne(const std::string& input);        // Any input.
//
// It fails by what the sanitizers find, and by FUZZ_CHECK.
#ifndef RING_KERAS_TESTS_FUZZ_SUPPORT_FUZZ_H_
#define RING_KERAS_TESTS_FUZZ_SUPPORT_FUZZ_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace ring_keras {

// Given to the fuzzer to begin with.
std::vector<std::string> Seeds();

void FuzzOne(const std::string& input);

#define FUZZ_CHECK(condition)                                         \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
                   #condition);                                       \
      std::abort();                                                   \
    }                                                                 \
  } while (false)

// What `decode` makes of `input` must survive `encode` and another `decode`.
// Returns what it encodes to; empty if `input` is refused.
template <typename Decode, typename Encode>
std::string CheckRoundTrip(const std::string& input, Decode decode,
                           Encode encode) {
  const auto first = decode(input);
  if (!first.ok()) return "";
  const std::string written = encode(first.value());
  const auto second = decode(written);
  FUZZ_CHECK(second.ok());
  FUZZ_CHECK(encode(second.value()) == written);
  return written;
}

// The same of a format in which a value has one form only.
template <typename Decode, typename Encode>
void CheckCanonical(const std::string& input, Decode decode, Encode encode) {
  if (!decode(input).ok()) return;
  FUZZ_CHECK(CheckRoundTrip(input, decode, encode) == input);
}

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_FUZZ_SUPPORT_FUZZ_H_
