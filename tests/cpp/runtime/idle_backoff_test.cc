#include "tf_ops/runtime/idle_backoff.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(IdleTurnsEndInSleepAndNewsBeginAnew) {
  IdleBackoff backoff;
  for (int round = 0; round < 2; ++round) {
    int spins = 0;
    int yields = 0;
    while (true) {
      const IdleBackoff::Step step = backoff.Next();
      if (step == IdleBackoff::Step::kSleep) break;
      ++(step == IdleBackoff::Step::kSpin ? spins : yields);
      ASSERT_TRUE(spins < 100000);
    }
    EXPECT_LT(yields, spins);
    EXPECT_LT(0, yields);
    // Who has slept sleeps on.
    EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
    backoff.OnProgress();
  }
}

RING_TEST(WhereNothingWakesItKeepsTheCoreAndThenSleeps) {
  IdleBackoff backoff(/*woken=*/false);
  for (int round = 0; round < 2; ++round) {
    int spins = 0;
    while (backoff.Next() == IdleBackoff::Step::kSpin) {
      ASSERT_TRUE(++spins < 100000);
    }
    EXPECT_LT(0, spins);
    EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
    backoff.OnProgress();
  }
}

RING_TEST(WhereNothingWakesItLooksLongerWhileSomethingMoves) {
  const auto spins = [](bool moves, int peers = 1) {
    IdleBackoff backoff(/*woken=*/false);
    int count = 0;
    while (backoff.Next(peers, moves) == IdleBackoff::Step::kSpin &&
           count < 100000) {
      ++count;
    }
    return count;
  };
  EXPECT_LT(spins(false), spins(true));
  EXPECT_LT(spins(true), 100000);
  // With more peers a look takes longer.
  EXPECT_LT(spins(true, 10), spins(true));
  EXPECT_LT(0, spins(true, 100000));
}

constexpr std::chrono::microseconds kAtOnce(1);
constexpr std::chrono::microseconds kTurnOfARank(20);
constexpr std::chrono::milliseconds kTimeSlice(3);

RING_TEST(WhereOthersTakeShortTurnsItYieldsInsteadOfSleeping) {
  IdleBackoff backoff;
  for (int i = 0; i < 1000; ++i) {
    backoff.OnYield({{}, kTurnOfARank});
    ASSERT_TRUE(backoff.Next() == IdleBackoff::Step::kYield);
    backoff.OnProgress();
  }
  // Unless nothing comes for long.
  int yields = 0;
  while (backoff.Next() == IdleBackoff::Step::kYield) {
    backoff.OnYield({{}, kTurnOfARank});
    ASSERT_TRUE(++yields < 100000);
  }
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
}

RING_TEST(ACoreThatNobodyWantsAnyMoreIsKept) {
  IdleBackoff backoff;
  backoff.OnYield({{}, kTurnOfARank});
  int yields = 0;
  while (backoff.Next() == IdleBackoff::Step::kYield) {
    backoff.OnYield({{}, kAtOnce});
    backoff.OnProgress();
    ASSERT_TRUE(++yields < 100000);
  }
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSpin);
}

RING_TEST(AfterContentionItSleepsAtOnceForAWhile) {
  IdleBackoff backoff;
  backoff.OnYield({{}, kTimeSlice});
  for (int i = 0; i < 100; ++i) {
    backoff.OnProgress();
    ASSERT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
    backoff.OnSleep();
  }
  for (int i = 0; i < 100000; ++i) backoff.OnSleep();
  backoff.OnProgress();
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kYield);
}

RING_TEST(ALongTurnNowAndThenIsNoContention) {
  IdleBackoff backoff;
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < 20000; ++i) backoff.OnProgress();
    backoff.OnYield({{}, kTimeSlice});
    ASSERT_TRUE(backoff.Next() == IdleBackoff::Step::kYield);
  }
  backoff.OnYield({{}, kTimeSlice});
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
}

}  // namespace
}  // namespace ring_keras
