// A rank that lacks memory in the middle of a collective does not leave its
// peers waiting, nor anything of itself behind.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/channel.h"
#include "tf_ops/runtime/engine.h"
#include "tf_ops/runtime/operation.h"

namespace {

// Of this thread's allocations one fails: the `skipped`-th after the first of
// `nbytes`.
struct Shortage {
  size_t nbytes = 0;  // 0: none.
  int skipped = 0;
  bool begun = false;

  bool Fails(size_t allocated) {
    if (nbytes == 0) return false;
    begun |= allocated == nbytes;
    if (!begun || skipped-- > 0) return false;
    *this = Shortage();
    return true;
  }
};
thread_local Shortage shortage;

}  // namespace

// None is inline, or the compiler warns of free() for what new gave.
[[gnu::noinline]] void* operator new(size_t nbytes) {
  if (shortage.Fails(nbytes)) throw std::bad_alloc();
  void* memory = std::malloc(nbytes > 0 ? nbytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

RankOptions Setup() {
  RankOptions setup;
  setup.collective_timeout_s = 5;
  return setup;
}

// In the engine's thread, which ends it at the latest at the timeout.
StatusCode RunInEngine(
    Rank& self, Request request, const std::function<void()>& then = [] {}) {
  std::atomic<bool> ended{false};
  StatusCode code = StatusCode::kOk;
  self.engine->Submit(std::move(request), [&](const Status& status) {
    code = status.code();
    then();
    ended = true;
  });
  const bool has_ended = testing::WaitFor([&] { return ended.load(); });
  if (!has_ended) std::abort();  // The callback would write to a dead stack.
  return code;
}

struct Outcome {
  StatusCode second[2];
  StatusCode third[2];
  bool ran_out = false;
};

// Reduces three times under one name. In the second, rank 0 lacks `before`
// until it asks for memory for its output, and `after` from then on.
Outcome ReduceWithShortage(Shortage before, Shortage after) {
  Outcome outcome;
  RunRanks(Setup(), [&](Rank& self) {
    self.engine->AddCommunicator(1, {0, 1});
    const bool lacks = self.rank == 0;
    // More than a window holds: no rank is done before the others have begun.
    std::vector<float> data(1 << 19, 1.0f);
    std::vector<float> output;
    bool is_second = false;
    const auto reduce = [&] {
      Request request = Allreduce("reduce", data);
      request.kind = CollectiveKind::kReduceScatter;
      request.outputs.clear();
      request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
        shortage = Shortage();
        output.resize(ElementCount(shape));
        if (lacks && is_second) shortage = after;
        return static_cast<void*>(output.data());
      };
      return request;
    };
    EXPECT_EQ(RunInEngine(self, reduce()), StatusCode::kOk);
    std::vector<float> one(1, 1.0f);
    EXPECT_EQ(RunInEngine(self, Allreduce("one", one),
                          [&] {
                            if (lacks) shortage = before;
                          }),
              StatusCode::kOk);
    is_second = true;
    outcome.second[self.rank] = RunInEngine(self, reduce(), [&] {
      if (lacks) outcome.ran_out = shortage.nbytes == 0;
      shortage = Shortage();
    });
    is_second = false;
    outcome.third[self.rank] = RunInEngine(self, reduce());
    // What the others may still read is not handed out again.
    std::vector<float> more(100000, 1.0f + self.rank);
    Request next = Allreduce("more", more);
    next.communicator_id = 1;
    EXPECT_EQ(RunInEngine(self, std::move(next)), StatusCode::kOk);
    EXPECT_EQ(more.front(), 3.0f);
    EXPECT_EQ(more.back(), 3.0f);
  });
  return outcome;
}

// From where the ranks have met until the algorithm has begun.
RING_TEST(AShortageAfterTheMeetingEndsTheCollectiveEverywhere) {
  int skipped = 0;
  for (bool ran_out = true; ran_out; ++skipped) {
    const Shortage at_match = {2 * sizeof(Participant), skipped};
    const Outcome outcome = ReduceWithShortage(at_match, {});
    ran_out = outcome.second[0] != StatusCode::kOk;
    const StatusCode expected =
        ran_out ? StatusCode::kResourceExhausted : StatusCode::kOk;
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(outcome.second[rank], expected) << rank << " of " << skipped;
      ASSERT_EQ(outcome.third[rank], expected) << rank << " of " << skipped;
    }
  }
  EXPECT_LT(1, skipped);
}

// A peer may have ended it well, and count on the channel.
RING_TEST(AShortageAtTheEndIsToldBeforeTheNextUse) {
  const Shortage at_end = {sizeof(Channel), 0};
  const Outcome outcome = ReduceWithShortage({}, at_end);
  EXPECT_TRUE(outcome.ran_out);
  EXPECT_EQ(outcome.second[0], StatusCode::kResourceExhausted);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(outcome.third[rank], StatusCode::kResourceExhausted) << rank;
  }
}

RING_TEST(ARequestForWhichThereIsNoMemoryIsNotCounted) {
  RunRanks(Setup(), [&](Rank& self) {
    std::vector<float> data(1, 1.0f);
    if (self.rank == 0) {
      Request request = Allreduce("sum", data);
      request.step_role = StepRole::kBegins;
      shortage = {sizeof(Operation), 0};
      bool thrown = false;
      try {
        (void)self.engine->Run(std::move(request));
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      EXPECT_TRUE(thrown);
      EXPECT_EQ(self.engine->pending_count(), 0);
    }
    Request request = Allreduce("sum", data);
    request.step_role = StepRole::kBegins;
    EXPECT_OK(self.engine->Run(std::move(request)));
    EXPECT_EQ(data[0], 2.0f);
  });
}

}  // namespace
}  // namespace ring_keras
