// Somebody between two ends who changes what they say.
#ifndef RING_KERAS_TESTS_FUZZ_SUPPORT_TAMPERING_H_
#define RING_KERAS_TESTS_FUZZ_SUPPORT_TAMPERING_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/support/script.h"

namespace ring_keras {

class Tampering {
 public:
  // Up to three bytes of those that pass are changed.
  explicit Tampering(Script* script) {
    const size_t count = script->Below(4);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = script->Byte();
      changes_.push_back({at, script->Byte()});
    }
  }

  // What becomes of bytes that pass next.
  std::string Pass(std::string bytes) {
    for (const auto& [at, mask] : changes_) {
      if (at < passed_ || at >= passed_ + bytes.size()) continue;
      bytes[at - passed_] = static_cast<char>(bytes[at - passed_] ^ mask);
    }
    passed_ += bytes.size();
    return bytes;
  }
  // Whether any byte came out as another; two changes may undo each other.
  bool changes() const {
    return std::any_of(changes_.begin(), changes_.end(), [&](const auto& one) {
      uint8_t mask = 0;
      for (const auto& [at, other] : changes_) {
        if (at == one.first) mask ^= other;
      }
      return one.first < passed_ && mask != 0;
    });
  }

 private:
  std::vector<std::pair<size_t, uint8_t>> changes_;  // Where, and which bits.
  size_t passed_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_FUZZ_SUPPORT_TAMPERING_H_
