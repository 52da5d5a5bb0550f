// Numbers that a fuzz target takes from its input, one after the other; zeros
// when there are none left.
#ifndef RING_KERAS_TESTS_FUZZ_SUPPORT_SCRIPT_H_
#define RING_KERAS_TESTS_FUZZ_SUPPORT_SCRIPT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace ring_keras {

class Script {
 public:
  explicit Script(const std::string& input) : input_(input) {}

  bool empty() const { return position_ == input_.size(); }
  uint8_t Byte() {
    return empty() ? 0 : static_cast<uint8_t>(input_[position_++]);
  }
  // Below `limit`, 1 to 256.
  size_t Below(size_t limit) { return Byte() % limit; }
  // Up to so many bytes.
  std::string Bytes(size_t count) {
    const size_t from = position_;
    position_ = std::min(input_.size(), position_ + count);
    return input_.substr(from, position_ - from);
  }
  std::string Rest() { return Bytes(input_.size()); }

 private:
  const std::string& input_;
  size_t position_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TESTS_FUZZ_SUPPORT_SCRIPT_H_
