// How often a rank writes down what it is doing.
#include "tf_ops/monitoring/dump_budget.h"

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

using std::chrono::seconds;

class Takes {
 public:
  bool operator()(DumpCause cause, seconds at, bool at_once = false) {
    return budget_.Take(cause, at_once, DumpBudget::Time(seconds(1000) + at));
  }
  const DumpBudget& budget() const { return budget_; }

 private:
  DumpBudget budget_;
};

RING_TEST(StallsLeaveHalfForFailures) {
  Takes takes;
  seconds at(0);
  for (int i = 0; i < DumpBudget::kMaxStalls; ++i, at += seconds(60)) {
    EXPECT_TRUE(takes.budget().Exhausted(DumpCause::kStall).empty());
    EXPECT_TRUE(takes(DumpCause::kStall, at));
  }
  EXPECT_FALSE(takes.budget().Exhausted(DumpCause::kStall).empty());
  EXPECT_TRUE(takes.budget().Exhausted(DumpCause::kOther).empty());
  EXPECT_FALSE(takes(DumpCause::kStall, at));
  for (int i = DumpBudget::kMaxStalls; i < DumpBudget::kMaxDumps; ++i) {
    EXPECT_TRUE(takes(DumpCause::kOther, at += seconds(60)));
  }
  EXPECT_FALSE(takes.budget().Exhausted(DumpCause::kOther).empty());
  EXPECT_FALSE(takes(DumpCause::kOther, at + seconds(60)));
  EXPECT_FALSE(takes(DumpCause::kOther, at + seconds(60), true));
}

RING_TEST(SoonAfterAnotherOnlyWhatIsNew) {
  Takes takes;
  EXPECT_TRUE(takes(DumpCause::kStall, seconds(0)));
  EXPECT_FALSE(takes(DumpCause::kStall, seconds(4)));
  // The failure that a stall announces.
  EXPECT_TRUE(takes(DumpCause::kOther, seconds(4)));
  EXPECT_FALSE(takes(DumpCause::kOther, seconds(5)));
  EXPECT_FALSE(takes(DumpCause::kStall, seconds(8)));
  EXPECT_TRUE(takes(DumpCause::kOther, seconds(5), true));
  EXPECT_TRUE(takes(DumpCause::kStall, seconds(10)));
}

}  // namespace
}  // namespace ring_keras
