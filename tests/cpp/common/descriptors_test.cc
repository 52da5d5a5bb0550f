// How many descriptors a process may open.
#include "tf_ops/common/descriptors.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

// `body()`, in a process that may have 600 at the most: who lowers the hard
// limit may not raise it.
template <typename Body>
bool HoldsWith600(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {300, 600};
    const bool holds = setrlimit(RLIMIT_NOFILE, &limit) == 0 && body();
    _exit(holds ? 0 : 1);
  }
  int ended = 0;
  return waitpid(child, &ended, 0) == child && WIFEXITED(ended) &&
         WEXITSTATUS(ended) == 0;
}

rlim_t Limit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

// 256 are for other purposes.
RING_TEST(AsManyAsAreWantedWhereTheLimitAllows) {
  EXPECT_TRUE(HoldsWith600(
      [] { return AllowDescriptors(100, 200, "it").ok() && Limit() == 456; }));
}

RING_TEST(LessThanAreWantedWhereThatIsEnough) {
  EXPECT_TRUE(HoldsWith600(
      [] { return AllowDescriptors(300, 600, "it").ok() && Limit() == 600; }));
}

RING_TEST(LessThanAreNeededIsAnError) {
  EXPECT_TRUE(HoldsWith600([] {
    return AllowDescriptors(400, 400, "it").code() ==
           StatusCode::kResourceExhausted;
  }));
}

}  // namespace
}  // namespace ring_keras
