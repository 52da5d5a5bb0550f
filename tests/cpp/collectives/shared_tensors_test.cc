// Collectives of tensors that lie in the ranks' arenas, and when a rank gives
// one up and another goes on.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cpp/collectives/members.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/algorithms.h"
#include "tf_ops/collectives/partition.h"

namespace ring_keras {
namespace {

// Elements. Large ones and small ones, whole pages and not.
const std::vector<int64_t> kCounts = {40'000, 3, 8192, 0, 100'001, 1000};

enum class Where { kArena, kPrivate };
enum class Result { kElsewhere, kInPlace };

// Ranks that have told each other that their tensors are in their arenas.
class TensorsOfRanks {
 public:
  TensorsOfRanks(const std::vector<int64_t>& counts,
                 const std::vector<Where>& places,
                 const std::vector<Result>& results,
                 ReduceOp op = ReduceOp::kSum, std::vector<int64_t> roots = {})
      : size_(static_cast<int>(places.size())),
        members_(ConnectByMemory(size_, true)),
        ranks_(size_) {
    std::vector<uint64_t> windows;
    Participants described(size_);
    for (int rank = 0; rank < size_; ++rank) {
      Rank& self = ranks_[rank];
      self.at = members_[rank].tensors->data();
      self.arguments.kind = roots.empty() ? CollectiveKind::kAllreduce
                                          : CollectiveKind::kBroadcast;
      self.arguments.dtype = DataType::kFloat32;
      self.arguments.reduce_op = op;
      self.arguments.roots = roots;
      for (int64_t count : counts) {
        float* input = Take(self, places[rank], count);
        self.arguments.inputs.push_back({input, {count}});
        self.arguments.outputs.push_back(results[rank] == Result::kInPlace
                                             ? input
                                             : Take(self, places[rank], count));
        const size_t tensor = self.arguments.inputs.size() - 1;
        for (int64_t i = 0; i < count; ++i) input[i] = ValueOf(rank, tensor, i);
      }
      self.collective = MakeCollective(self.arguments, communicator(rank));
      WindowUse use;
      use.slot_nbytes = *self.collective->slot_nbytes();
      EXPECT_EQ(use.slot_nbytes, *ranks_[0].collective->slot_nbytes());
      use.window =
          mesh(rank).windows().Allocate(WindowBytes(use.slot_nbytes)).value();
      self.collective->Prepare(use);
      self.collective->Describe(&described[rank]);
      windows.push_back(mesh(rank).windows().OffsetOf(use.window));
    }
    for (int rank = 0; rank < size_; ++rank) {
      ranks_[rank].participants = described;
      for (int peer = 0; peer < size_; ++peer) {
        ranks_[rank].participants[peer].window =
            WindowAt(communicator(rank).segment(peer), windows[peer]);
      }
    }
  }

  int size() const { return size_; }
  Mesh& mesh(int rank) { return *members_[rank].mesh; }
  Communicator& communicator(int rank) { return *members_[rank].communicator; }
  Scheduler& scheduler(int rank) { return members_[rank].scheduler; }
  Collective& collective(int rank) { return *ranks_[rank].collective; }
  Participants& participants(int rank) { return ranks_[rank].participants; }
  Task& task(int rank) { return *ranks_[rank].task; }
  size_t tensor_count() const { return ranks_[0].arguments.inputs.size(); }
  int64_t count(size_t tensor) const {
    return ranks_[0].arguments.inputs[tensor].shape[0];
  }
  float* input(int rank, size_t tensor) {
    return const_cast<float*>(
        static_cast<const float*>(ranks_[rank].arguments.inputs[tensor].data));
  }
  float* output(int rank, size_t tensor) {
    return static_cast<float*>(ranks_[rank].arguments.outputs[tensor]);
  }
  std::string algorithm(int rank) {
    return ranks_[rank].collective->algorithm().name;
  }

  // Whole numbers: every order of adding gives the same.
  static float ValueOf(int rank, size_t tensor, int64_t i) {
    return static_cast<float>((rank + 1) * ((i % 97) + 1) + 1000 * tensor);
  }
  void Start(int rank) {
    Rank& self = ranks_[rank];
    self.task.emplace(self.collective->Run(self.participants));
    self.task->Start();
  }
  void RunAll() {
    for (int rank = 0; rank < size_; ++rank) Start(rank);
    // Each turn of all takes at least one of them further.
    for (int turn = 0; turn < 1000; ++turn) {
      for (int rank = 0; rank < size_; ++rank) scheduler(rank).RunReady();
    }
    for (int rank = 0; rank < size_; ++rank) {
      ASSERT_TRUE(task(rank).done()) << "rank " << rank;
      EXPECT_OK(task(rank).result());
    }
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

 private:
  struct Rank {
    char* at = nullptr;  // In its arena.
    std::vector<std::vector<float>> private_tensors;
    CollectiveArguments arguments;
    std::unique_ptr<Collective> collective;
    Participants participants;
    std::optional<Task> task;
  };

  float* Take(Rank& self, Where where, int64_t count) {
    if (where == Where::kPrivate) {
      return self.private_tensors.emplace_back(count).data();
    }
    float* taken = reinterpret_cast<float*>(self.at);
    self.at += WholePages(count * sizeof(float));
    return taken;
  }

  int size_;
  std::vector<Member> members_;
  std::vector<Rank> ranks_;
};

void ExpectSums(TensorsOfRanks& shared, float divisor = 1) {
  for (int rank = 0; rank < shared.size(); ++rank) {
    for (size_t tensor = 0; tensor < shared.tensor_count(); ++tensor) {
      for (int64_t i = 0; i < shared.count(tensor); ++i) {
        float sum = 0;
        for (int other = 0; other < shared.size(); ++other) {
          sum += TensorsOfRanks::ValueOf(other, tensor, i);
        }
        ASSERT_EQ(shared.output(rank, tensor)[i], sum / divisor)
            << "rank " << rank << ", tensor " << tensor << " at " << i;
      }
    }
  }
}

RING_TEST(AllRanksGetTheSums) {
  for (int size : {2, 3}) {
    for (Result result : {Result::kElsewhere, Result::kInPlace}) {
      TensorsOfRanks shared(kCounts, std::vector<Where>(size, Where::kArena),
                            std::vector<Result>(size, result));
      EXPECT_EQ(shared.algorithm(0), "shared_tensors");
      shared.RunAll();
      ExpectSums(shared);
      for (int rank = 0; rank < size; ++rank) {
        // As many on every rank: those of the window's next use follow.
        EXPECT_EQ(shared.collective(rank).rounds(),
                  shared.collective(0).rounds());
      }
    }
  }
}

// More than caches are taken to hold: results elsewhere are written past them.
RING_TEST(LargeResultsAreTheSameWhereverTheyGo) {
  for (int size : {2, 3}) {
    for (Result result : {Result::kElsewhere, Result::kInPlace}) {
      std::vector<Result> results(size, Result::kElsewhere);
      results[0] = result;
      TensorsOfRanks shared({1'000'003, 8'193, 7, 300'000},
                            std::vector<Where>(size, Where::kArena), results);
      EXPECT_EQ(shared.algorithm(0), "shared_tensors");
      shared.RunAll();
      ExpectSums(shared);
    }
  }
}

RING_TEST(NothingIsStagedWhereAllIsLarge) {
  TensorsOfRanks shared({40'000, 100'001}, {Where::kArena, Where::kArena},
                        {Result::kElsewhere, Result::kElsewhere});
  shared.RunAll();
  ExpectSums(shared);
  // One to show where, one for the data.
  EXPECT_EQ(shared.collective(0).rounds(), uint64_t{2});
}

// One rank has them elsewhere, and its peers find that out.
RING_TEST(OneRankWithoutAnArenaMakesAllStage) {
  for (int size : {2, 3}) {
    std::vector<Where> places(size, Where::kArena);
    places[1] = Where::kPrivate;
    TensorsOfRanks shared(kCounts, places,
                          std::vector<Result>(size, Result::kInPlace));
    EXPECT_EQ(shared.algorithm(0), "shared_tensors");
    EXPECT_EQ(shared.algorithm(1), size == 2 ? "shared_flat" : "shared_parts");
    shared.RunAll();
    ExpectSums(shared);
  }
}

void ExpectRoots(TensorsOfRanks& shared, const std::vector<int64_t>& roots) {
  for (int rank = 0; rank < shared.size(); ++rank) {
    for (size_t tensor = 0; tensor < shared.tensor_count(); ++tensor) {
      for (int64_t i = 0; i < shared.count(tensor); ++i) {
        ASSERT_EQ(shared.output(rank, tensor)[i],
                  TensorsOfRanks::ValueOf(roots[tensor], tensor, i))
            << "rank " << rank << ", tensor " << tensor << " at " << i;
      }
    }
  }
}

const std::vector<int64_t> kRoots = {1, 0, 0, 1, 0, 1};

RING_TEST(AllRanksGetTheRootsTensors) {
  for (int size : {2, 3}) {
    for (Result result : {Result::kElsewhere, Result::kInPlace}) {
      TensorsOfRanks shared(kCounts, std::vector<Where>(size, Where::kArena),
                            std::vector<Result>(size, result), ReduceOp::kSum,
                            kRoots);
      EXPECT_EQ(shared.algorithm(0), "shared_tensors");
      shared.RunAll();
      ExpectRoots(shared, kRoots);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(shared.collective(rank).rounds(),
                  shared.collective(0).rounds());
      }
    }
  }
}

RING_TEST(LargeTensorsOfRootsAreTheSameWhereverTheyGo) {
  const std::vector<int64_t> roots = {1, 0, 1, 0};
  TensorsOfRanks shared(
      {3'000'003, 8'193, 7, 2'000'001}, {Where::kArena, Where::kArena},
      {Result::kElsewhere, Result::kInPlace}, ReduceOp::kSum, roots);
  shared.RunAll();
  ExpectRoots(shared, roots);
}

// It does not matter where those lie that others send.
RING_TEST(ARootWithoutAnArenaMakesAllStage) {
  for (int64_t root : {0, 1}) {
    const std::vector<int64_t> roots(kCounts.size(), root);
    TensorsOfRanks shared(kCounts, {Where::kArena, Where::kPrivate},
                          {Result::kElsewhere, Result::kInPlace},
                          ReduceOp::kSum, roots);
    EXPECT_EQ(shared.algorithm(0), "shared_tensors");
    EXPECT_EQ(shared.algorithm(1), root == 0 ? "shared_tensors" : "shared");
    shared.RunAll();
    ExpectRoots(shared, roots);
  }
}

// Its caller goes on with its memory, which a peer may be about to read.
RING_TEST(WhatARootHasGivenUpDoesNotCount) {
  const std::vector<int64_t> roots = {0, 1};
  TensorsOfRanks shared({40'000, 100'001}, {Where::kArena, Where::kArena},
                        {Result::kElsewhere, Result::kElsewhere},
                        ReduceOp::kSum, roots);
  shared.Start(0);
  shared.Fail(0);
  shared.Start(1);
  shared.scheduler(1).RunReady();
  ASSERT_FALSE(shared.task(1).done());
  shared.Fail(1);
}

RING_TEST(AnAverageIsDivided) {
  TensorsOfRanks shared(kCounts, {Where::kArena, Where::kArena},
                        {Result::kInPlace, Result::kInPlace},
                        ReduceOp::kAverage);
  shared.RunAll();
  ExpectSums(shared, 2);
}

RING_TEST(TensorsOnSharedPagesAreStaged) {
  std::vector<Member> members = ConnectByMemory(2, true);
  char* data = members[0].tensors->data();
  const auto is_found = [&](size_t begin) {
    CollectiveArguments arguments;
    arguments.kind = CollectiveKind::kAllreduce;
    arguments.inputs = {{data + 64, {100'000}}};
    arguments.outputs = {data + begin};
    return FindTensorPlaces(arguments, *members[0].communicator).has_value();
  };
  EXPECT_TRUE(is_found(0));
  EXPECT_TRUE(is_found(2 * PageBytes()));
  EXPECT_FALSE(is_found(64));
}

// Rank 0 fails when it has shown where its tensors are, rank 1 when it has done
// its part of them.
RING_TEST(WhoGoesOnReachesNobodysTensors) {
  for (int failing : {0, 1}) {
    TensorsOfRanks shared({40'000, 100'001}, {Where::kArena, Where::kArena},
                          {Result::kElsewhere, Result::kElsewhere});
    const int other = 1 - failing;
    shared.Start(0);
    if (failing == 1) shared.Start(1);
    ASSERT_FALSE(shared.task(failing).done());
    shared.Fail(failing);
    // The caller goes on with its memory.
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      std::fill_n(shared.input(failing, tensor), shared.count(tensor), -1.0f);
      std::fill_n(shared.output(failing, tensor), shared.count(tensor), -2.0f);
    }
    if (other == 1) shared.Start(1);
    shared.scheduler(other).RunReady();
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      // It has done its part, for both.
      EXPECT_TRUE(shared.output(other, tensor)[shared.count(tensor) - 1] != 0 ||
                  shared.output(other, tensor)[0] != 0);
      for (int64_t i = 0; i < shared.count(tensor); ++i) {
        ASSERT_EQ(shared.input(failing, tensor)[i], -1.0f) << "at " << i;
        ASSERT_EQ(shared.output(failing, tensor)[i], -2.0f) << "at " << i;
      }
    }
    // What it has read is not to be believed: it waits for the others' reason.
    ASSERT_FALSE(shared.task(other).done());
    shared.Fail(other);
  }
}

// Memory that a peer's number leads out of is not touched.
RING_TEST(APlaceOutsideOfTheArenaIsAnError) {
  TensorsOfRanks shared({40'000}, {Where::kArena, Where::kArena},
                        {Result::kElsewhere, Result::kElsewhere});
  Window& window = *shared.participants(0)[1].window;
  const TensorPlace place = {kTensorAreaBytes - 1, 0};
  std::memcpy(window.data(), &place, sizeof(place));
  window.packed.store(1);
  shared.Start(0);
  ASSERT_TRUE(shared.task(0).done());
  EXPECT_TRUE(shared.task(0).result().message().find(
                  "rank 1 says that a tensor lies outside of its memory") !=
              std::string::npos)
      << shared.task(0).result().message();
}

// A rank with much to do lets others have their turn.
RING_TEST(LongTensorsGiveWay) {
  TensorsOfRanks shared({int64_t{16} << 20, int64_t{1} << 20},
                        {Where::kArena, Where::kArena},
                        {Result::kInPlace, Result::kInPlace});
  shared.Start(0);
  shared.Start(1);
  EXPECT_FALSE(shared.task(1).done());
  EXPECT_TRUE(shared.scheduler(1).AnyReady());
  // It hears at once that it is over.
  shared.Fail(1);
  shared.Fail(0);
}

}  // namespace
}  // namespace ring_keras
