#include "tf_ops/runtime/patience.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(IdleTurnsEndInSleepAndNewsBeginAnew) {
  Patience patience;
  for (int round = 0; round < 2; ++round) {
    int looks = 0;
    int yields = 0;
    while (true) {
      const Patience::Step step = patience.Next();
      if (step == Patience::Step::kSleep) break;
      ++(step == Patience::Step::kLook ? looks : yields);
      ASSERT_TRUE(looks < 100000);
    }
    EXPECT_LT(yields, looks);
    EXPECT_LT(0, yields);
    // Who has slept sleeps on.
    EXPECT_TRUE(patience.Next() == Patience::Step::kSleep);
    patience.OnProgress();
  }
}

RING_TEST(AfterContentionItSleepsAtOnceForAWhile) {
  Patience patience;
  patience.OnYield(std::chrono::milliseconds(1));
  for (int i = 0; i < 100; ++i) {
    patience.OnProgress();
    ASSERT_TRUE(patience.Next() == Patience::Step::kSleep);
    patience.OnSleep();
  }
  for (int i = 0; i < 100000; ++i) patience.OnSleep();
  patience.OnProgress();
  EXPECT_TRUE(patience.Next() == Patience::Step::kLook);
  // A core that nobody else wants is given back at once.
  patience.OnYield(std::chrono::microseconds(1));
  EXPECT_TRUE(patience.Next() == Patience::Step::kLook);
}

}  // namespace
}  // namespace ring_keras
