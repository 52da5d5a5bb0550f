// When the device gets a collective, and what waits for what.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/cpp/collectives/nccl/device_ranks.h"

namespace ring_keras {
namespace {

using testing::DeviceArray;
using testing::DeviceRank;
using testing::Ranks;
using testing::RunDeviceRanks;
using testing::Submitted;
using testing::WaitFor;

constexpr int64_t kLaunchedCount = 500;

// Many uses of many names on one communicator, each with a tensor of its own.
class Load {
 public:
  static constexpr int kNames = 8;
  static constexpr int kUses = 3;

  Load(DeviceRank& rank, int communicator_id, const std::vector<int>& ranks)
      : rank_(rank), communicator_id_(communicator_id), ranks_(ranks) {
    for (int name = 0; name < kNames; ++name) {
      for (int use = 0; use < kUses; ++use) {
        tensors_.push_back(std::make_unique<DeviceArray<float>>(
            std::vector<float>(kLaunchedCount, ValueAt(rank.rank, name, use))));
      }
    }
  }

  // Every name's uses come in their order; names in any, by `seed`.
  void Submit(int seed) {
    ASSERT_EQ(cudaSetDevice(rank_.rank), 0);
    std::vector<int> names;
    for (int i = 0; i < kNames * kUses; ++i) names.push_back(i / kUses);
    std::shuffle(names.begin(), names.end(), std::mt19937(seed));
    std::vector<int> uses(kNames, 0);
    for (int name : names) {
      const int use = uses[name]++;
      Request request =
          AllreduceInPlace(rank_, StrCat("tensor ", name),
                           TensorOf(name, use).get(), kLaunchedCount);
      request.communicator_id = communicator_id_;
      submitted_.push_back(
          std::make_unique<Submitted>(rank_, std::move(request)));
    }
  }

  void Check() {
    for (const auto& submitted : submitted_) {
      ASSERT_OK(submitted->Outcome());
      EXPECT_EQ(submitted->launches(), 1);
      EXPECT_FALSE(submitted->ended_before_launched());
    }
    for (int name = 0; name < kNames; ++name) {
      for (int use = 0; use < kUses; ++use) {
        float sum = 0;
        for (int rank : ranks_) sum += ValueAt(rank, name, use);
        EXPECT_EQ(TensorOf(name, use).Read(),
                  std::vector<float>(kLaunchedCount, sum));
      }
    }
  }

 private:
  float ValueAt(int rank, int name, int use) const {
    return static_cast<float>(1000 * communicator_id_ + 100 * rank + 10 * name +
                              use);
  }
  DeviceArray<float>& TensorOf(int name, int use) {
    return *tensors_[name * kUses + use];
  }

  DeviceRank& rank_;
  const int communicator_id_;
  const std::vector<int> ranks_;
  std::vector<std::unique_ptr<DeviceArray<float>>> tensors_;
  std::vector<std::unique_ptr<Submitted>> submitted_;
};

// NCCL would deadlock, or mix tensors up, if the launches were in the order of
// the submissions.
RING_TEST(RanksMaySubmitInAnyOrder) {
  for (const char* transport : {"auto", "tcp"}) {
    for (int size : {2, 3, 4}) {
      RunDeviceRanks(Ranks(size, transport), [](DeviceRank& self) {
        std::vector<int> everyone(self.size);
        for (int rank = 0; rank < self.size; ++rank) everyone[rank] = rank;
        Load load(self, 0, everyone);
        load.Submit(self.rank);
        load.Check();
      });
    }
  }
}

RING_TEST(SeveralThreadsSubmitSideBySide) {
  RunDeviceRanks(Ranks(3), [](DeviceRank& self) {
    constexpr int kThreads = 4;
    constexpr int kUsesEach = 10;
    // Made before and freed after, since cudaFree waits for all that the device
    // has been given: a thread that frees memory between two uses would enter
    // the second after what another one has launched, which no rank may do.
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
    for (int i = 0; i < kThreads * kUsesEach; ++i) {
      tensors.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(
          kLaunchedCount, static_cast<float>(self.rank + i / kUsesEach))));
    }
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ASSERT_EQ(cudaSetDevice(self.rank), 0);
        for (int use = 0; use < kUsesEach; ++use) {
          DeviceArray<float>& data = *tensors[i * kUsesEach + use];
          Request request = AllreduceInPlace(self, StrCat("of thread ", i),
                                             data.get(), kLaunchedCount);
          ASSERT_OK(self.engine().Run(std::move(request)));
          const auto sum = static_cast<float>(3 + 3 * i);
          if (data.Read() != std::vector<float>(kLaunchedCount, sum))
            ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
  });
}

// Each pair of the three ranks shares a communicator, and all share one; every
// rank turns to them in another order, and no communicator is connected yet.
void UseFourCommunicators(DeviceRank& self, bool split) {
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2}, {0, 1}, {1, 2}, {0, 2}};
  std::vector<std::unique_ptr<Load>> loads(sets.size());
  for (size_t id = 0; id < sets.size(); ++id) {
    if (id > 0) self.engine().AddCommunicator(id, sets[id]);
    if (id > 0 && split) {
      ASSERT_OK(self.engine().SplitDevices(id, self.rank));
    }
    if (std::count(sets[id].begin(), sets[id].end(), self.rank) > 0) {
      loads[id] = std::make_unique<Load>(self, id, sets[id]);
    }
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    const size_t id = (i + self.rank) % sets.size();
    if (loads[id] != nullptr) loads[id]->Submit(7 * self.rank);
  }
  for (const auto& load : loads) {
    if (load != nullptr) load->Check();
  }
}

RING_TEST(CommunicatorsConnectInAnyOrder) {
  for (int round = 0; round < 3; ++round) {
    RunDeviceRanks(Ranks(3),
                   [](DeviceRank& self) { UseFourCommunicators(self, false); });
  }
}

RING_TEST(CommunicatorsAreSplitFromTheJobs) {
  RunDeviceRanks(Ranks(3), [](DeviceRank& self) {
    UseFourCommunicators(self, true);
    self.engine().RemoveCommunicator(1);
    const DeviceArray<float> data(std::vector<float>{1});
    ASSERT_OK(self.engine().Run(
        AllreduceInPlace(self, "after the removal", data.get(), 1)));
    EXPECT_EQ(data.Read()[0], 3);
  });
}

// The device is held up before the first of them.
RING_TEST(TheHostRunsAheadOfTheDevice) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kLaunchedCount, 1));
    void* gate = RingKerasStandInHold(self.stream);
    std::vector<std::unique_ptr<Submitted>> uses;
    for (int use = 0; use < 5; ++use) {
      uses.push_back(std::make_unique<Submitted>(
          self, AllreduceInPlace(self, "again", data.get(), kLaunchedCount)));
    }
    for (const auto& use : uses) {
      EXPECT_TRUE(WaitFor([&] { return use->launched(); }));
      EXPECT_FALSE(use->ended());
    }
    RingKerasStandInOpen(gate);
    for (const auto& use : uses) EXPECT_OK(use->Outcome());
    EXPECT_EQ(data.Read(), std::vector<float>(kLaunchedCount, 32));
  });
}

// The caller's stream goes on with the result, and no host thread waits.
RING_TEST(WhatFollowsSeesTheResult) {
  RunDeviceRanks(Ranks(3), [](DeviceRank& self) {
    const DeviceArray<float> data(kLaunchedCount);
    const DeviceArray<float> copy(kLaunchedCount);
    const std::vector<float> ones(kLaunchedCount, 1);
    for (int step = 0; step < 20; ++step) {
      ASSERT_EQ(cudaMemcpyAsync(data.get(), ones.data(),
                                kLaunchedCount * sizeof(float),
                                stand_in::kCudaHostToDevice, self.stream),
                0);
      Request request =
          AllreduceInPlace(self, "step", data.get(), kLaunchedCount);
      const std::shared_ptr<DeviceWork> work = request.device_work;
      const Submitted submitted(self, std::move(request));
      ASSERT_TRUE(WaitFor([&] { return submitted.launches() > 0; }));
      ASSERT_OK(work->Follow(self.stream));
      ASSERT_EQ(cudaMemcpyAsync(copy.get(), data.get(),
                                kLaunchedCount * sizeof(float),
                                stand_in::kCudaDeviceToDevice, self.stream),
                0);
      ASSERT_EQ(cudaStreamSynchronize(self.stream), 0);
      ASSERT_EQ(copy.Read(), std::vector<float>(kLaunchedCount, 3))
          << "step " << step;
      ASSERT_OK(submitted.Outcome());
    }
  });
}

// The framework's pool gives memory anew as soon as it may.
RING_TEST(MemoryIsFreeWhenTheCollectiveHasEnded) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    std::vector<std::unique_ptr<Submitted>> submitted;
    for (int i = 0; i < 30; ++i) {
      // One alone, in place; two, through the buffer.
      const int tensor_count = 1 + i % 2;
      Request request =
          self.MakeRequest(CollectiveKind::kAllreduce, StrCat("tensor ", i % 7),
                           DataType::kFloat32);
      std::vector<void*> memory;
      for (int tensor = 0; tensor < tensor_count; ++tensor) {
        void* data = nullptr;
        ASSERT_EQ(cudaMalloc(&data, kLaunchedCount * sizeof(float)), 0);
        request.inputs.push_back({data, {kLaunchedCount}});
        request.outputs.push_back(data);
        memory.push_back(data);
      }
      self.engine().Submit(std::move(request), [memory](const Status& status) {
        EXPECT_OK(status);
        for (void* data : memory) EXPECT_EQ(RingKerasStandInTakeBack(data), 0);
      });
    }
    // Uses of a name end in their order.
    const DeviceArray<float> last(std::vector<float>{1});
    ASSERT_OK(self.engine().Run(AllreduceInPlace(self, "last", last.get(), 1)));
    ASSERT_TRUE(WaitFor([&] { return self.engine().pending_count() == 0; }));
  });
}

// CUDA allows other threads little meanwhile, unless they say that they are no
// part of it.
RING_TEST(AGraphMayBeCapturedMeanwhile) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kLaunchedCount, 1));
    void* gate = RingKerasStandInHold(self.stream);
    Submitted submitted(
        self, AllreduceInPlace(self, "grads", data.get(), kLaunchedCount));
    EXPECT_TRUE(WaitFor([&] { return submitted.launched(); }));
    RingKerasStandInCapture(1);
    RingKerasStandInOpen(gate);
    EXPECT_OK(submitted.Outcome());
    Request barrier;
    barrier.name = "both have ended";
    EXPECT_OK(self.engine().Run(std::move(barrier)));
    RingKerasStandInCapture(0);
    EXPECT_EQ(data.Read(), std::vector<float>(kLaunchedCount, self.size));
  });
}

// Memory for an output comes from the caller's pool, where the stream may still
// have to read what was there before.
RING_TEST(LateOutputsWaitForTheCallersStream) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    for (CollectiveKind kind :
         {CollectiveKind::kAllgather, CollectiveKind::kReduceScatter,
          CollectiveKind::kAlltoall}) {
      const DeviceArray<float> input(std::vector<float>(4, 1));
      const DeviceArray<float> output(std::vector<float>(8, 5));
      const DeviceArray<float> before(8);
      std::atomic<void*> gate{nullptr};
      Request request =
          self.MakeRequest(kind, NameOf(kind), DataType::kFloat32);
      request.inputs = {{input.get(), {4}}};
      request.allocate_output = [&](const Shape&) -> StatusOr<void*> {
        gate = RingKerasStandInHold(self.stream);
        EXPECT_EQ(cudaMemcpyAsync(before.get(), output.get(), 8 * sizeof(float),
                                  stand_in::kCudaDeviceToDevice, self.stream),
                  0);
        return static_cast<void*>(output.get());
      };
      const Submitted submitted(self, std::move(request));
      ASSERT_TRUE(WaitFor([&] { return submitted.launched(); }));
      EXPECT_FALSE(submitted.ended());
      RingKerasStandInOpen(gate);
      ASSERT_OK(submitted.Outcome());
      EXPECT_EQ(before.Read(), std::vector<float>(8, 5)) << NameOf(kind);
      EXPECT_EQ(output.Read()[0],
                kind == CollectiveKind::kReduceScatter ? 2 : 1);
    }
  });
}

// The last test: after all of the above.
RING_TEST(LaunchesLeaveNothingBehind) {
  EXPECT_EQ(RingKerasStandInCommunicators(), 0);
  EXPECT_EQ(RingKerasStandInRegistrations(), 0);
  EXPECT_EQ(RingKerasStandInStreams(), 0);
  EXPECT_EQ(RingKerasStandInAllocations(), 0);
}

}  // namespace
}  // namespace ring_keras
