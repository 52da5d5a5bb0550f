#include "tf_ops/rendezvous/sha256.h"

#include <string>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

std::string ToHex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// FIPS 180-4's examples.
RING_TEST(Sha256OfTheStandardsExamples) {
  EXPECT_EQ(ToHex(Sha256Of("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(ToHex(Sha256Of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256Of(
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(ToHex(Sha256Of(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

RING_TEST(Sha256DoesNotDependOnHowTheMessageIsCut) {
  for (size_t length : {55, 56, 63, 64, 65, 119, 120, 128, 200}) {
    const std::string message(length, 'x');
    for (size_t cut = 0; cut <= length; cut += 7) {
      Sha256 hash;
      hash.Update(message.substr(0, cut));
      hash.Update(message.substr(cut));
      EXPECT_EQ(ToHex(hash.Finish()), ToHex(Sha256Of(message)))
          << length << " bytes cut at " << cut;
    }
  }
}

// RFC 4231, test cases 1, 2, 3, 6 and 7.
RING_TEST(HmacSha256OfTheStandardsExamples) {
  EXPECT_EQ(ToHex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(ToHex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(ToHex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(ToHex(HmacSha256(
                std::string(131, '\xaa'),
                "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      ToHex(HmacSha256(
          std::string(131, '\xaa'),
          "This is a test using a larger than block-size key and a larger than "
          "block-size data. The key needs to be hashed before being used by "
          "the HMAC algorithm.")),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

RING_TEST(ComparesEveryByte) {
  EXPECT_TRUE(ConstantTimeEqual("", ""));
  EXPECT_TRUE(ConstantTimeEqual("abcd", "abcd"));
  EXPECT_FALSE(ConstantTimeEqual("abcd", "abcx"));
  EXPECT_FALSE(ConstantTimeEqual("abcd", "xbcd"));
  EXPECT_FALSE(ConstantTimeEqual("abcd", "abc"));
}

RING_TEST(RandomBytesDiffer) {
  StatusOr<std::string> first = RandomBytes(32);
  StatusOr<std::string> second = RandomBytes(32);
  ASSERT_OK(first.status());
  ASSERT_OK(second.status());
  EXPECT_EQ(first.value().size(), 32);
  EXPECT_NE(first.value(), second.value());
}

}  // namespace
}  // namespace ring_keras
