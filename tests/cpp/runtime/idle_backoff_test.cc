#include "tf_ops/runtime/idle_backoff.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(IdleTurnsEndInSleepAndNewsBeginAnew) {
  IdleBackoff backoff;
  for (int round = 0; round < 2; ++round) {
    int looks = 0;
    int yields = 0;
    while (true) {
      const IdleBackoff::Step step = backoff.Next();
      if (step == IdleBackoff::Step::kSleep) break;
      ++(step == IdleBackoff::Step::kLook ? looks : yields);
      ASSERT_TRUE(looks < 100000);
    }
    EXPECT_LT(yields, looks);
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
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kLook);
  // A core that nobody else wants is given back at once.
  backoff.OnYield({{}, std::chrono::microseconds(1)});
  EXPECT_TRUE(backoff.Next() == IdleBackoff::Step::kLook);
}

}  // namespace
}  // namespace ring_keras
