// An allreduce for which there is no memory fails; nothing of it is left
// behind.
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/algorithms.h"

namespace {

// Allocations until one fails, on this thread; negative: none does.
thread_local int allocations_left = -1;

}  // namespace

void* operator new(size_t nbytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(nbytes > 0 ? nbytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace ring_keras {
namespace {

// Whether the allreduce went as far as to wait for a peer, with memory for
// `allocations`.
bool WaitsForPeer(int allocations) {
  std::vector<Member> members = Connect(2);
  Communicator& communicator = *members[0].communicator;
  Scheduler& scheduler = members[0].scheduler;
  std::vector<float> data(size_t{3} << 20, 1.0f);
  CollectiveArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.dtype = DataType::kFloat32;
  arguments.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  arguments.outputs = {data.data()};
  bool waits = false;
  {
    const auto collective = MakeCollective(arguments, communicator, 1);
    const Participants participants(2);
    Task task = collective->Run(participants);
    allocations_left = allocations;
    task.Start();
    allocations_left = -1;
    waits = !task.done() && communicator.status().ok();
    if (!waits) {
      const Status& why = task.done() ? task.result() : communicator.status();
      EXPECT_TRUE(why.code() == StatusCode::kResourceExhausted);
    }
    communicator.Break(Status(StatusCode::kPeerLost, "gone"));
    while (scheduler.RunReady()) {
    }
    EXPECT_TRUE(task.done());
    EXPECT_FALSE(task.result().ok());
  }
  EXPECT_TRUE(scheduler.idle()) << "with " << allocations << " allocations";
  return waits;
}

RING_TEST(NoTaskIsLostForWantOfMemory) {
  int allocations = 0;
  // What fails before it has spawned anything has nothing to break.
  while (!WaitsForPeer(allocations)) ++allocations;
  EXPECT_TRUE(allocations > 8) << allocations;
}

}  // namespace
}  // namespace ring_keras
