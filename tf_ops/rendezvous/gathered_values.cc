#include "tf_ops/rendezvous/gathered_values.h"

#include <algorithm>
#include <cstdint>

#include "tf_ops/rendezvous/limits.h"
#include "tf_ops/rendezvous/wire.h"

namespace ring_keras::rendezvous {
namespace {

// Of each run of equal values: how many, how many bytes they begin with of the
// run before, how many of their own, these bytes.
constexpr size_t kRunHeaderBytes = 4 + 4 + 4;

size_t CommonBytes(std::string_view a, std::string_view b) {
  const size_t shorter = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<long>(shorter),
                    b.begin())
          .first -
      a.begin());
}

Status Unreadable() {
  return Status(StatusCode::kInvalidArgument,
                "the values of all ranks cannot be read");
}

}  // namespace

std::string EncodeValues(const std::vector<std::string>& values) {
  std::string text;
  std::string_view before;
  for (size_t first = 0; first < values.size();) {
    const std::string& value = values[first];
    size_t end = first + 1;
    while (end < values.size() && values[end] == value) ++end;
    const size_t common = CommonBytes(before, value);
    AppendInteger(text, static_cast<uint32_t>(end - first));
    AppendInteger(text, static_cast<uint32_t>(common));
    AppendInteger(text, static_cast<uint32_t>(value.size() - common));
    text.append(value, common);
    before = value;
    first = end;
  }
  return text;
}

StatusOr<std::vector<std::string>> DecodeValues(std::string_view text,
                                                size_t count) {
  std::vector<std::string> values;
  values.reserve(count);
  size_t left = kMaxGatheredBytes;
  while (!text.empty()) {
    if (text.size() < kRunHeaderBytes) return Unreadable();
    const size_t run = IntegerAt<uint32_t>(text, 0);
    const size_t common = IntegerAt<uint32_t>(text, 4);
    const size_t own = IntegerAt<uint32_t>(text, 8);
    text.remove_prefix(kRunHeaderBytes);
    const std::string_view before =
        values.empty() ? std::string_view() : std::string_view(values.back());
    if (run > count - values.size() || common > before.size() ||
        own > text.size() || common + own > kMaxValueBytes ||
        run * (common + own) > left) {
      return Unreadable();
    }
    left -= run * (common + own);
    std::string value(before.substr(0, common));
    value += text.substr(0, own);
    text.remove_prefix(own);
    values.insert(values.end(), run, value);
  }
  if (values.size() != count) return Unreadable();
  return values;
}

}  // namespace ring_keras::rendezvous
