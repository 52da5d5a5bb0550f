// Allreduce of tensors in shared buffers when a rank gives it up and another
// goes on, as one does that was stopped in the middle.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/algorithms.h"

namespace ring_keras {
namespace {

// Ranks that have told each other where their buffers are.
class SharedAllreduce {
 public:
  // `in_buffers`: otherwise the tensors are in private memory. The first
  // `in_place` ranks' results take the place of their inputs.
  SharedAllreduce(int size, int64_t count, bool in_buffers = true,
                  int in_place = 0)
      : members_(ConnectByMemory(size)), ranks_(size) {
    std::vector<uint64_t> windows;
    Participants described(size);
    for (int rank = 0; rank < size; ++rank) {
      Rank& self = ranks_[rank];
      const size_t nbytes = count * sizeof(float);
      const auto allocate = [&] {
        return in_buffers ? mesh(rank).buffers().Allocate(nbytes).value()
                          : std::shared_ptr<void>(calloc(1, nbytes), free);
      };
      self.input = allocate();
      self.output = rank < in_place ? self.input : allocate();
      self.arguments.kind = CollectiveKind::kAllreduce;
      self.arguments.dtype = DataType::kFloat32;
      self.arguments.inputs = {{self.input.get(), {count}}};
      self.arguments.outputs = {self.output.get()};
      self.collective = MakeCollective(self.arguments, communicator(rank));
      WindowUse use;
      use.slot_nbytes = *self.collective->slot_nbytes();
      use.window =
          mesh(rank).windows().Allocate(WindowBytes(use.slot_nbytes)).value();
      self.window = use.window;
      self.collective->Prepare(use);
      self.collective->Describe(&described[rank]);
      windows.push_back(mesh(rank).windows().OffsetOf(use.window));
    }
    for (int rank = 0; rank < size; ++rank) {
      ranks_[rank].participants = described;
      for (int peer = 0; peer < size; ++peer) {
        ranks_[rank].participants[peer].window =
            WindowAt(communicator(rank).segment(peer), windows[peer]);
      }
    }
  }

  Mesh& mesh(int rank) { return *members_[rank].mesh; }
  Communicator& communicator(int rank) { return *members_[rank].communicator; }
  Scheduler& scheduler(int rank) { return members_[rank].scheduler; }
  float* input(int rank) {
    return static_cast<float*>(ranks_[rank].input.get());
  }
  float* output(int rank) {
    return static_cast<float*>(ranks_[rank].output.get());
  }
  Window& window(int rank) { return *ranks_[rank].window; }
  Task& task(int rank) { return *ranks_[rank].task; }

  void Start(int rank) {
    Rank& self = ranks_[rank];
    self.task.emplace(self.collective->Run(self.participants));
    self.task->Start();
  }
  // As the runtime does when a rank is lost: fails the collective, then lets it
  // go before the caller hears of it.
  void Fail(int rank) {
    communicator(rank).Break(Status(StatusCode::kPeerLost, "gone"));
    scheduler(rank).RunReady();
    if (ranks_[rank].task.has_value()) {
      ASSERT_TRUE(ranks_[rank].task->done());
      ASSERT_FALSE(ranks_[rank].task->result().ok());
    }
    ranks_[rank].collective.reset();
  }
  void FreeOutput(int rank) { ranks_[rank].output.reset(); }

 private:
  struct Rank {
    std::shared_ptr<void> input;
    std::shared_ptr<void> output;
    CollectiveArguments arguments;
    std::unique_ptr<Collective> collective;
    Window* window = nullptr;
    Participants participants;
    std::optional<Task> task;
  };
  std::vector<Member> members_;
  std::vector<Rank> ranks_;
};

constexpr int64_t kCount = 5000;

void ExpectAllEndWell(int size, int64_t count, int in_place) {
  SharedAllreduce shared(size, count, true, in_place);
  for (int rank = 0; rank < size; ++rank) {
    for (int64_t i = 0; i < count; ++i) {
      shared.input(rank)[i] = static_cast<float>((rank + 1) * (i % 97));
    }
  }
  for (int rank = 0; rank < size; ++rank) shared.Start(rank);
  // Each turn of all takes at least one of them further.
  for (int turn = 0; turn < 1000; ++turn) {
    for (int rank = 0; rank < size; ++rank) shared.scheduler(rank).RunReady();
  }
  for (int rank = 0; rank < size; ++rank) {
    ASSERT_TRUE(shared.task(rank).done());
    EXPECT_OK(shared.task(rank).result());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(shared.output(rank)[i], size * (size + 1) / 2.0f * (i % 97))
          << "rank " << rank << " at " << i;
    }
  }
}

// More than 8 results are not written side by side.
RING_TEST(AllRanksEndWell) {
  std::vector<int> sizes = {2, 3, 8, 9};
  // The thread sanitizer has too few addresses for 17 x 17 views.
#if !defined(__SANITIZE_THREAD__)
  sizes.push_back(17);
#endif
  for (int size : sizes) {
    for (int in_place : {0, 1, size}) ExpectAllEndWell(size, kCount, in_place);
  }
}

// More than caches are taken to hold: what lies elsewhere is written past them.
RING_TEST(LargeOnesEndWell) {
  for (int size : {2, 3, 8, 9}) {
    for (int in_place : {0, 1, size}) {
      ExpectAllEndWell(size, 1'300'003, in_place);
    }
  }
}

// Before the rank that fails has begun, and when it has done its part.
RING_TEST(WhoGoesOnReachesNobodysMemory) {
  for (bool has_begun : {false, true}) {
    SharedAllreduce shared(2, kCount);
    std::fill_n(shared.input(0), kCount, 1.0f);
    std::fill_n(shared.input(1), kCount, 2.0f);
    if (has_begun) shared.Start(0);
    shared.Fail(0);
    // The caller goes on with its memory.
    std::fill_n(shared.input(0), kCount, -1.0f);
    std::fill_n(shared.output(0), kCount, -2.0f);

    shared.Start(1);
    shared.scheduler(1).RunReady();
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(shared.input(0)[i], -1.0f) << "at " << i;
      ASSERT_EQ(shared.output(0)[i], -2.0f) << "at " << i;
    }
    // What it has read is not to be believed: it waits for the others' reason.
    ASSERT_FALSE(shared.task(1).done());
    shared.Fail(1);
  }
}

// Pages of a buffer that was let go belong to nobody else while a rank may
// write to them.
RING_TEST(BuffersMadeLaterAreElsewhere) {
  SharedAllreduce shared(2, kCount);
  std::fill_n(shared.input(0), kCount, 1.0f);
  std::fill_n(shared.input(1), kCount, 2.0f);
  shared.Fail(0);
  shared.FreeOutput(0);
  std::vector<std::shared_ptr<void>> later;
  for (int i = 0; i < 8; ++i) {
    later.push_back(
        shared.mesh(0).buffers().Allocate(kCount * sizeof(float)).value());
    std::memset(later.back().get(), 0x55, kCount * sizeof(float));
  }
  shared.Start(1);
  for (const auto& buffer : later) {
    for (size_t i = 0; i < kCount * sizeof(float); ++i) {
      ASSERT_EQ(int{static_cast<char*>(buffer.get())[i]}, 0x55);
    }
  }
  shared.Fail(1);
}

// An output that shares a page with something else cannot be taken away from
// peers, and so is never given to them.
RING_TEST(OutputsOnSharedPagesAreStaged) {
  std::vector<Member> members = ConnectByMemory(2);
  Communicator& communicator = *members[0].communicator;
  const auto page = static_cast<int64_t>(PageBytes());
  auto buffer = members[0].mesh->buffers().Allocate(4 * page).value();
  char* data = static_cast<char*>(buffer.get());
  const auto is_found = [&](int64_t begin, int64_t nbytes) {
    CollectiveArguments arguments;
    arguments.kind = CollectiveKind::kAllreduce;
    arguments.inputs = {{data, {nbytes}}};
    arguments.outputs = {data + begin};
    return FindSharedBuffers(arguments, communicator).has_value();
  };
  EXPECT_TRUE(is_found(0, 4 * page));
  EXPECT_TRUE(is_found(page, 2 * page));
  EXPECT_TRUE(is_found(2 * page, 2 * page));
  EXPECT_FALSE(is_found(64, page));
  EXPECT_FALSE(is_found(0, page - 96));
}

// A rank with much to do lets others have their turn.
RING_TEST(LongOnesGiveWay) {
  SharedAllreduce shared(2, int64_t{16} << 20);
  shared.Start(0);
  EXPECT_EQ(shared.window(0).reduced.load(), uint64_t{0});
  EXPECT_TRUE(shared.scheduler(0).AnyReady());
  // It hears at once that it is over.
  shared.Fail(0);
}

RING_TEST(LongOnesInManyRoundsGiveWay) {
  SharedAllreduce shared(2, int64_t{16} << 20, false);
  // As if the other rank had done its part of every round.
  Window& peer = shared.window(1);
  for (auto* counter : {&peer.packed, &peer.reduced, &peer.unpacked}) {
    counter->store(uint64_t{1} << 32);
  }
  shared.Start(0);
  EXPECT_FALSE(shared.task(0).done());
  EXPECT_TRUE(shared.scheduler(0).AnyReady());
  while (!shared.task(0).done()) ASSERT_TRUE(shared.scheduler(0).RunReady());
  EXPECT_OK(shared.task(0).result());
}

RING_TEST(LongOnesOfOneRankGiveWay) {
  std::vector<Member> members = Connect(1);
  std::vector<float> data(size_t{16} << 20, 8.0f);
  CollectiveArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.dtype = DataType::kFloat32;
  arguments.prescale = 0.5;
  arguments.postscale = 0.5;
  arguments.inputs = {{data.data(), {static_cast<int64_t>(data.size())}}};
  arguments.outputs = {data.data()};
  const auto collective = MakeCollective(arguments, *members[0].communicator);
  const Participants participants(1);
  Task task = collective->Run(participants);
  task.Start();
  EXPECT_FALSE(task.done());
  while (!task.done()) ASSERT_TRUE(members[0].scheduler.RunReady());
  EXPECT_OK(task.result());
  for (float value : data) ASSERT_EQ(value, 2.0f);
}

}  // namespace
}  // namespace ring_keras
