#include "tf_ops/rendezvous/rank_ledger.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/rendezvous/limits.h"

namespace ring_keras::rendezvous {
namespace {

const RankLedger::TimePoint kNow{std::chrono::hours(1)};

RankLedger::TimePoint After(double seconds) {
  return kNow + std::chrono::duration_cast<Deadline::Clock::duration>(
                    std::chrono::duration<double>(seconds));
}

// A job of three ranks in which rank 1 has joined.
RankLedger NewLedger() {
  RankLedger ledger(3);
  EXPECT_EQ(ledger.Admit(1, "10.0.0.1:99"), Refusal::kNone);
  ledger.Name(1, "node7", 4711);
  return ledger;
}

void ExpectOneEvent(RankLedger& ledger, RankLedger::TimePoint now,
                    RankEvent::Kind kind, const std::string& description) {
  const std::vector<RankEvent> events = ledger.TakeEvents(now);
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].kind, kind);
  EXPECT_EQ(events[0].description, description);
  EXPECT_TRUE(ledger.TakeEvents(After(1000)).empty());
  EXPECT_EQ(ledger.ended().size(), 1);
  EXPECT_FALSE(ledger.NextDue().has_value());
}

RING_TEST(OnlyAFreshRankIsAdmitted) {
  RankLedger ledger = NewLedger();
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kRankTaken);
  EXPECT_EQ(ledger.Admit(3, "x"), Refusal::kRankOutOfRange);
  EXPECT_EQ(ledger.Admit(-1, "x"), Refusal::kRankOutOfRange);
  ledger.Close(1, "closed", true, kNow);
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kRankTaken);
  EXPECT_EQ(ledger.TakeEvents(After(1)).size(), 1);
  EXPECT_EQ(ledger.Admit(0, "x"), Refusal::kNone);
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kRanksRemain);
}

RING_TEST(ANewGenerationBeginsWhenAllHaveGone) {
  RankLedger ledger = NewLedger();
  EXPECT_EQ(ledger.Admit(0, "x"), Refusal::kNone);
  ledger.Leave(1, "done");
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kRanksRemain);
  EXPECT_EQ(ledger.RemainingRank(), 0);
  // A closed connection is no end yet: its verdict belongs to this generation.
  ledger.Close(0, "closed", true, kNow);
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kRanksRemain);
  EXPECT_EQ(ledger.TakeEvents(After(1)).size(), 2);
  EXPECT_EQ(ledger.restarts(), 0);

  // Rank 2 was never there, which keeps nobody out.
  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kNone);
  EXPECT_EQ(ledger.restarts(), 1);
  EXPECT_TRUE(ledger.ended().empty());
  EXPECT_TRUE(ledger.TakeEvents(After(1000)).empty());
  EXPECT_EQ(ledger.Admit(0, "x"), Refusal::kNone);
  EXPECT_EQ(ledger.Admit(2, "x"), Refusal::kNone);
}

RING_TEST(ARankWhoseProcessEndedIsLostToTheNextGeneration) {
  RankLedger ledger = NewLedger();
  EXPECT_EQ(ledger.Admit(0, "x"), Refusal::kNone);
  ledger.Leave(0, "its script ended");
  ledger.ReportExit(0, "exited with code 0", kNow);
  ledger.Leave(1, "called shutdown()");
  EXPECT_EQ(ledger.TakeEvents(kNow).size(), 2);

  EXPECT_EQ(ledger.Admit(1, "x"), Refusal::kNone);
  ExpectOneEvent(ledger, kNow, RankEvent::Kind::kLost,
                 "rank 0 exited with code 0 and did not call init() again");
  EXPECT_EQ(ledger.Admit(0, "x"), Refusal::kRankEnded);
}

RING_TEST(AClosedConnectionWaitsForTheLaunchersWord) {
  RankLedger ledger = NewLedger();
  ledger.Close(1, "its connection closed", true, kNow);
  EXPECT_TRUE(ledger.TakeEvents(kNow).empty());
  ASSERT_TRUE(ledger.NextDue().has_value());
  EXPECT_TRUE(*ledger.NextDue() == After(kExitGraceS));
  ExpectOneEvent(ledger, After(kExitGraceS), RankEvent::Kind::kLost,
                 "rank 1 (host node7, pid 4711) died: its connection closed");
}

RING_TEST(TheLaunchersWordGoesIntoTheVerdict) {
  RankLedger before = NewLedger();
  before.ReportExit(1, "was killed by SIGKILL", kNow);
  EXPECT_TRUE(before.TakeEvents(kNow).empty());
  before.Close(1, "its connection closed", true, kNow);
  ExpectOneEvent(before, kNow, RankEvent::Kind::kLost,
                 "rank 1 (host node7, pid 4711) was killed by SIGKILL");

  RankLedger after = NewLedger();
  after.Close(1, "its connection closed", true, kNow);
  after.ReportExit(1, "exited with code 1", After(0.1));
  ExpectOneEvent(after, After(0.1), RankEvent::Kind::kLost,
                 "rank 1 (host node7, pid 4711) exited with code 1");
}

RING_TEST(ThatARankLeftStandsWhateverFollows) {
  RankLedger ledger = NewLedger();
  ledger.ReportExit(1, "exited with code 0", kNow);
  ledger.Leave(1, "shutdown");
  ledger.Close(1, "its connection closed", true, kNow);
  ledger.ReportExit(1, "exited with code 0", kNow);
  ledger.Silence(1, 10);
  ExpectOneEvent(ledger, After(1), RankEvent::Kind::kLeft,
                 "rank 1 (host node7, pid 4711) left: shutdown");
}

RING_TEST(AnExitIsBelievedThoughTheConnectionStaysOpen) {
  RankLedger ledger = NewLedger();
  ledger.ReportExit(1, "was killed by SIGKILL", kNow);
  ExpectOneEvent(ledger, After(kExitGraceS), RankEvent::Kind::kLost,
                 "rank 1 (host node7, pid 4711) was killed by SIGKILL");
}

RING_TEST(ARankThatNeverJoinedIsLostAtOnce) {
  RankLedger ledger(3);
  ledger.ReportExit(2, "exited with code 1", kNow);
  ExpectOneEvent(ledger, kNow, RankEvent::Kind::kLost,
                 "rank 2 exited with code 1 before it joined the job");
  EXPECT_EQ(ledger.Admit(2, "x"), Refusal::kRankEnded);
}

RING_TEST(SilenceIsAVerdict) {
  RankLedger ledger = NewLedger();
  ledger.Silence(1, 10);
  ExpectOneEvent(
      ledger, kNow, RankEvent::Kind::kLost,
      "rank 1 (host node7, pid 4711) has been silent for 10 s "
      "(RING_KERAS_HEARTBEAT_TIMEOUT_S): stopped, swapped out, or cut off");
}

RING_TEST(AnEndedProcessIsToldFromOneThatMayComeBack) {
  const auto has_ended = [](const std::function<void(RankLedger&)>& happens) {
    RankLedger ledger = NewLedger();
    happens(ledger);
    const std::vector<RankEvent> events = ledger.TakeEvents(After(1));
    return events.size() == 1 && events[0].process_ended;
  };
  EXPECT_TRUE(has_ended([](RankLedger& ledger) {
    ledger.Close(1, "its connection closed", true, kNow);
  }));
  EXPECT_TRUE(has_ended([](RankLedger& ledger) {
    ledger.ReportExit(1, "was killed by SIGKILL", kNow);
  }));
  EXPECT_FALSE(has_ended([](RankLedger& ledger) {
    ledger.Close(1, "its connection broke", false, kNow);
  }));
  EXPECT_FALSE(has_ended([](RankLedger& ledger) { ledger.Silence(1, 10); }));
  EXPECT_FALSE(has_ended([](RankLedger& ledger) { ledger.Leave(1, "done"); }));
}

}  // namespace
}  // namespace ring_keras::rendezvous
