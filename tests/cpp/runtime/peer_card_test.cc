// What ranks tell each other when they join.
#include "tf_ops/runtime/peer_card.h"

#include <string>
#include <vector>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(ACardComesBackAsItWas) {
  PeerCard card = MakePeerCard("a host");
  card.segment_descriptor = 5;
  card.doorbell_descriptor = 6;
  card.nonce[0] = 255;
  card.tuning.direct_max_bytes = 0;
  card.tuning.parts_max_bytes = size_t{3} << 40;
  card.autotune = true;

  const auto decoded = DecodePeerCard(Encode(card));

  ASSERT_OK(decoded.status());
  EXPECT_EQ(decoded.value().host_name, "a host");
  EXPECT_TRUE(decoded.value().MayShareMemory(card));
  EXPECT_TRUE(decoded.value().nonce == card.nonce);
  EXPECT_OK(CheckSameSettings({card, decoded.value()}));
}

RING_TEST(WhatIsNotSetIsASettingToo) {
  std::vector<PeerCard> cards(2, MakePeerCard("a"));
  cards[1].tuning.halving_max_bytes = 8;
  for (PeerCard& card : cards) card = DecodePeerCard(Encode(card)).value();

  const Status status = CheckSameSettings(cards);

  EXPECT_EQ(status.message(),
            "RING_KERAS_HALVING_MAX_BYTES must be the same on every rank: it "
            "is unset on rank 0 and 8 on rank 1. Set "
            "RING_KERAS_HALVING_MAX_BYTES to one value for all ranks, or "
            "nowhere.");
}

RING_TEST(ACardWithoutNumbersIsRefused) {
  const std::string text = Encode(MakePeerCard("a"));
  std::string changed = text;
  changed.replace(changed.find("unset"), 5, "12x");

  EXPECT_EQ(DecodePeerCard(changed).status().code(), StatusCode::kInternal);
}

RING_TEST(ACardCutShortIsRefused) {
  std::string text = Encode(MakePeerCard("a"));
  text.resize(text.rfind(' '));

  EXPECT_EQ(DecodePeerCard(text).status().code(), StatusCode::kInternal);
}

// Damage that stream extraction would overlook.
RING_TEST(WhatIsNotWrittenAsACardIsRefused) {
  PeerCard card = MakePeerCard("a");
  const std::string text = Encode(card);
  EXPECT_OK(DecodePeerCard(text));
  std::string no_digits = text;
  no_digits.replace(no_digits.size() - 2, 2, "zz");
  for (const std::string& other : {no_digits, text + "0", " " + text}) {
    EXPECT_EQ(DecodePeerCard(other).status().code(), StatusCode::kInternal);
  }
  // Its lines would be read as other fields.
  card.host_name = "a\nb";
  EXPECT_EQ(DecodePeerCard(Encode(card)).status().code(),
            StatusCode::kInternal);
}

RING_TEST(EqualSettingsAreFine) {
  EXPECT_OK(CheckSameSettings({}));
  EXPECT_OK(CheckSameSettings(std::vector<PeerCard>(3)));
}

RING_TEST(AnotherSettingNamesTheRankTheVariableAndBothValues) {
  std::vector<PeerCard> cards(3);
  cards[0].tuning.direct_max_bytes = 7;
  cards[1].tuning.direct_max_bytes = 7;
  cards[2].tuning.direct_max_bytes = 8;

  const Status status = CheckSameSettings(cards);

  EXPECT_EQ(status.code(), StatusCode::kRankMismatch);
  EXPECT_EQ(status.message(),
            "RING_KERAS_DIRECT_MAX_BYTES must be the same on every rank: it is "
            "7 on rank 0 and 8 on rank 2. Set RING_KERAS_DIRECT_MAX_BYTES to "
            "one value for all ranks, or nowhere.");
}

}  // namespace
}  // namespace ring_keras
