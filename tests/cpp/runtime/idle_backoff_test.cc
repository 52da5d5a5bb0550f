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

RING_TEST(AfterContentionItSleepsAtOnceForAWhile) {
  IdleBackoff backoff;
  backoff.OnYield({{}, std::chrono::milliseconds(1)});
  for (int i = 0; i < 100; ++i) {
    backoff.OnProgress();
    ASSERT_TRUE(backoff.Next() == IdleBackoff::Step::kSleep);
    backoff.OnSleep();
  }
  for (int i = 0; i < 100000; ++i) backoff.OnSleep();
  backoff.OnProgress();
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSpin);
  // A core that nobody else wants is given back at once.
  backoff.OnYield({{}, std::chrono::microseconds(1)});
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kSpin);
}

}  // namespace
}  // namespace ring_keras
