// Points in time, near and far.
#include "tf_ops/common/deadline.h"

#include <limits>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

RING_TEST(AFarDeadlineIsNotOver) {
  for (const double timeout_s :
       {1e3, 1e10, 1e12, 1e300, std::numeric_limits<double>::infinity()}) {
    const Deadline deadline = Deadline::After(timeout_s);
    EXPECT_FALSE(deadline.Expired()) << timeout_s;
    EXPECT_LT(900.0, deadline.RemainingSeconds()) << timeout_s;
  }
  EXPECT_TRUE(Deadline::After(0).Expired());
  EXPECT_EQ(Deadline::After(-1).RemainingSeconds(), 0.0);
}

}  // namespace
}  // namespace ring_keras
