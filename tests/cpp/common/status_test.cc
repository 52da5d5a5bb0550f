// What messages are made of.
#include "tf_ops/common/status.h"

#include <cstdint>
#include <locale>
#include <string>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(WordsAndNumbersAreJoined) {
  const std::string word = "rank ";
  EXPECT_EQ(StrCat(word, 1, std::string_view(" of "), int64_t{-2}, '.'),
            "rank 1 of -2.");
  EXPECT_EQ(StrCat(0.1, " ", 30.0, " ", 1e9, " ", 2.0f / 3),
            "0.1 30 1e+09 0.666667");
  EXPECT_EQ(StrCat(uint8_t{7}, true, size_t{1} << 63), "719223372036854775808");
  EXPECT_EQ(StrCat(), "");
}

class Grouped : public std::numpunct<char> {
  char do_thousands_sep() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

RING_TEST(NumbersAreThoseOfNoLocale) {
  const std::locale before =
      std::locale::global(std::locale(std::locale::classic(), new Grouped));
  const std::string text = StrCat(65536, " bytes");
  std::locale::global(before);
  EXPECT_EQ(text, "65536 bytes");
}

}  // namespace
}  // namespace ring_keras
