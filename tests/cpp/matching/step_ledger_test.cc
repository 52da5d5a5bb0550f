// Which steps ranks have passed, and what they have given up.
#include "tf_ops/matching/step_ledger.h"

#include <string>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(WhoAnnouncesAStepHasPassedThoseBefore) {
  StepLedger ledger(2, 0);
  EXPECT_FALSE(ledger.HasPassed(1, 1));
  EXPECT_TRUE(ledger.OnAnnounced(1, 5));
  EXPECT_TRUE(ledger.HasPassed(1, 4));
  EXPECT_FALSE(ledger.HasPassed(1, 5));
  // Nor do more words of the same step, or a late one of an earlier, tell more.
  EXPECT_FALSE(ledger.OnAnnounced(1, 5));
  EXPECT_FALSE(ledger.OnAnnounced(1, 3));
  EXPECT_TRUE(ledger.HasPassed(1, 4));
  EXPECT_EQ(ledger.StepOf(1), 5u);
  EXPECT_EQ(ledger.latest(), 5u);
  EXPECT_FALSE(ledger.HasPassed(0, 1));
  // Before the first step there is none to pass.
  EXPECT_FALSE(ledger.OnAnnounced(0, 1));
  EXPECT_TRUE(ledger.OnAnnounced(0, 2));
}

RING_TEST(WhoGivesUpHasPassedAndAllMust) {
  StepLedger ledger(3, 1);
  ledger.OnGivenUp(2, {6, "by 2"});
  EXPECT_TRUE(ledger.HasPassed(2, 6));
  EXPECT_FALSE(ledger.HasPassed(2, 7));
  EXPECT_FALSE(ledger.GaveUp(6));
  ledger.OnGivenUp(1, {6, "by 1"});
  EXPECT_TRUE(ledger.GaveUp(6));
  EXPECT_FALSE(ledger.AllGaveUp(6));
  ledger.OnGivenUp(0, {7, "by 0"});
  EXPECT_TRUE(ledger.AllGaveUp(6));
  EXPECT_FALSE(ledger.AllGaveUp(7));
  // In the first rank's words, on every rank.
  EXPECT_EQ(ledger.why().message(), "by 0");
  EXPECT_EQ(ledger.why().code(), StatusCode::kRankMismatch);
}

RING_TEST(WhatIsGivenUpOnlyGrows) {
  StepLedger ledger(2, 0);
  ledger.OnGivenUp(0, {6, "first"});
  ledger.OnGivenUp(0, {4, "less"});
  ledger.OnGivenUp(0, {6, "again"});
  EXPECT_TRUE(ledger.GaveUp(6));
  EXPECT_EQ(ledger.why().message(), "first");
}

RING_TEST(TheWordSurvivesTheJourneyAndDamage) {
  const auto got = DecodeGivenUp(Encode(GivenUp{uint64_t{3} << 40, "why"}));
  ASSERT_OK(got);
  EXPECT_EQ(got.value().through, uint64_t{3} << 40);
  EXPECT_EQ(got.value().why, "why");
  EXPECT_FALSE(DecodeGivenUp("1234567").ok());
}

}  // namespace
}  // namespace ring_keras
