// The order in which a communicator's collectives are given to the device.
#include "tf_ops/collectives/launch_order.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(NumbersAreGivenInOrder) {
  LaunchOrder order;
  EXPECT_EQ(order.Assign(), 0);
  EXPECT_EQ(order.Assign(), 1);
}

RING_TEST(OneIsNextWhenAllBeforeHavePassed) {
  LaunchOrder order;
  EXPECT_TRUE(order.IsNext(0));
  order.Pass(2);
  order.Pass(1);
  EXPECT_TRUE(order.IsNext(0));
  EXPECT_FALSE(order.IsNext(3));
  order.Pass(0);
  EXPECT_TRUE(order.IsNext(3));
  EXPECT_FALSE(order.IsNext(LaunchOrder::kNoNumber));
}

}  // namespace
}  // namespace ring_keras
