// An allreduce for which there is no memory fails; nothing of it is left
// behind.
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/algorithms.h"

namespace {

// Allocations until one fails, and only that, on this thread; negative: none
// does.
thread_local int allocations_left = -1;

}  // namespace

// None is inline, or the compiler warns of free() for what new gave.
[[gnu::noinline]] void* operator new(size_t nbytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
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

// Starts an allreduce with memory for all but allocation number `allocations`;
// whether it came to that.
bool RunsOutOfMemory(int allocations) {
  std::vector<Member> members = Connect(2);
  Communicator& communicator = *members[0].communicator;
  Scheduler& scheduler = members[0].scheduler;
  std::vector<float> data(size_t{3} << 20, 1.0f);
  CollectiveArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.dtype = DataType::kFloat32;
  arguments.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  arguments.outputs = {data.data()};
  bool ran_out = false;
  {
    const auto collective = MakeCollective(arguments, communicator);
    const Participants participants(2);
    Task task = collective->Run(participants);
    allocations_left = allocations;
    task.Start();
    ran_out = std::exchange(allocations_left, -1) < 0;
    // The peers hear of it, one way or the other.
    if (ran_out) {
      const Status& why = task.done() ? task.result() : communicator.status();
      EXPECT_TRUE(why.code() == StatusCode::kResourceExhausted) << allocations;
    }
    communicator.Break(Status(StatusCode::kPeerLost, "gone"));
    while (scheduler.RunReady()) {
    }
    EXPECT_TRUE(task.done());
    EXPECT_FALSE(task.result().ok());
  }
  EXPECT_TRUE(scheduler.idle()) << "with " << allocations << " allocations";
  return ran_out;
}

RING_TEST(NoTaskIsLostForWantOfMemory) {
  int allocations = 0;
  while (RunsOutOfMemory(allocations)) ++allocations;
  EXPECT_TRUE(allocations > 8) << allocations;
}

}  // namespace
}  // namespace ring_keras
