// The values of all ranks, as the store gives them back.
#include <algorithm>

#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/script.h"
#include "tf_ops/rendezvous/gathered_values.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras {
namespace {

using rendezvous::DecodeValues;
using rendezvous::EncodeValues;

// The first byte is how many values there must be.
std::string Seed(const std::vector<std::string>& values) {
  return std::string(1, static_cast<char>(values.size())) +
         EncodeValues(values);
}

// Few letters, so that values have much in common.
std::vector<std::string> ValuesFrom(Script script) {
  std::vector<std::string> values(script.Below(20));
  for (std::string& value : values) {
    value = script.Bytes(script.Below(9));
    for (char& letter : value) letter &= 1;
  }
  return values;
}

}  // namespace

std::vector<std::string> Seeds() {
  return {Seed({}), Seed({"", "", ""}),
          Seed({"same", "same", "same", "other", "same"}),
          Seed({"host a, rank 0", "host a, rank 1", "host b, rank 2"})};
}

void FuzzOne(const std::string& input) {
  Script script(input);
  const size_t count = script.Byte();
  const auto decode = [count](const std::string& text) {
    return DecodeValues(text, count);
  };
  CheckRoundTrip(script.Rest(), decode, EncodeValues);

  const auto values = ValuesFrom(Script(input));
  const auto again = DecodeValues(EncodeValues(values), values.size());
  FUZZ_CHECK(again.ok() && again.value() == values);

  const auto decoded = decode(input.empty() ? input : input.substr(1));
  if (!decoded.ok()) return;
  FUZZ_CHECK(decoded.value().size() == count);
  size_t nbytes = 0;
  for (const std::string& value : decoded.value()) nbytes += value.size();
  FUZZ_CHECK(nbytes <= kMaxGatheredBytes);
}

}  // namespace ring_keras
