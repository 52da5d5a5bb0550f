// Names and reasons in a dump, which is lines of JSON.
#include "tests/fuzz/support/fuzz.h"
#include "tf_ops/monitoring/dump_format.h"

namespace ring_keras {
namespace {

// As a reader of JSON has it; the quotes and escapes are right.
std::string Unquoted(const std::string& text) {
  FUZZ_CHECK(text.size() >= 2 && text.front() == '"' && text.back() == '"');
  std::string plain;
  for (size_t at = 1; at + 1 < text.size(); ++at) {
    FUZZ_CHECK(static_cast<unsigned char>(text[at]) >= 0x20);
    FUZZ_CHECK(text[at] != '"');
    if (text[at] != '\\') {
      plain += text[at];
    } else if (text[at + 1] == 'u') {
      plain +=
          static_cast<char>(std::stoi(text.substr(at + 2, 4), nullptr, 16));
      at += 5;
    } else {
      plain += text[++at];
    }
  }
  return plain;
}

}  // namespace

std::vector<std::string> Seeds() {
  return {"grads/dense \"bias\"\n", "na\xc3\xafve \\ \x01"};
}

void FuzzOne(const std::string& input) {
  FUZZ_CHECK(Unquoted(JsonText(input)) == input);
}

}  // namespace ring_keras
