// What peers have announced, until this rank's operations come.
#include "tf_ops/runtime/matcher.h"

#include <string>
#include <utility>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

void Keep(Matcher& matcher, uint64_t key, int communicator_id, uint64_t step) {
  Announcement announcement;
  announcement.use.communicator_id = communicator_id;
  announcement.use.step = step;
  announcement.use.name = "gradients";
  matcher.Keep(key, 1, std::move(announcement));
}

int KeptOf(const Matcher& matcher, int communicator_id) {
  int count = 0;
  matcher.ForEachKept([&](int, const Announcement& announcement) {
    count += announcement.use.communicator_id == communicator_id;
  });
  return count;
}

// Nobody would meet them any more.
RING_TEST(WhatIsKeptForARemovedCommunicatorIsForgotten) {
  Matcher matcher(3);
  Keep(matcher, 1, 7, 0);  // Outside of any step.
  Keep(matcher, 2, 7, 4);
  Keep(matcher, 3, 8, 0);
  ASSERT_TRUE(KeptOf(matcher, 7) == 2);

  matcher.ForgetCommunicator(7);

  EXPECT_EQ(KeptOf(matcher, 7), 0);
  EXPECT_EQ(KeptOf(matcher, 8), 1);
}

}  // namespace
}  // namespace ring_keras
