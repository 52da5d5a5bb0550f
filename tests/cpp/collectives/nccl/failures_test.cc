// Collectives on devices that fail: the same error on every rank, nothing left
// on the device, and a disagreement leaves the communicator usable.
#include <future>
#include <latch>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/collectives/nccl/device_ranks.h"
#include "tests/cpp/support/standard_error_capture.h"

namespace ring_keras {
namespace {

using testing::DeviceArray;
using testing::DeviceRank;
using testing::RankOptions;
using testing::Ranks;
using testing::RunDeviceRanks;
using testing::StandardErrorCapture;
using testing::Submitted;
using testing::TestStream;
using testing::WaitFor;

constexpr int64_t kCount = 1000;
constexpr int kRemoteError = 6;  // ncclRemoteError

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What the ranks were told.
class Verdicts {
 public:
  void Add(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    codes_.insert(status.code());
    texts_.insert(status.message());
  }
  // Of all ranks, the same.
  StatusCode code() const {
    EXPECT_EQ(codes_.size(), size_t{1});
    return *codes_.begin();
  }
  std::string text() const {
    EXPECT_EQ(texts_.size(), size_t{1});
    for (const std::string& text : texts_) {
      EXPECT_EQ(text, *texts_.begin());
    }
    return *texts_.begin();
  }

 private:
  std::mutex mutex_;
  std::set<StatusCode> codes_;
  std::set<std::string> texts_;
};

void ExpectUsable(DeviceRank& self) {
  for (const char* name : {"usable", "usable too"}) {
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    EXPECT_OK(
        self.engine().Run(AllreduceInPlace(self, name, data.get(), kCount)));
    EXPECT_EQ(data.Read(), std::vector<float>(kCount, self.size));
  }
}

RING_TEST(ARankInHostMemoryIsAMismatch) {
  for (int host_rank : {0, 1}) {
    Verdicts verdicts;
    RunDeviceRanks(Ranks(2), [&](DeviceRank& self) {
      const DeviceArray<float> data(std::vector<float>(kCount, 1));
      std::vector<float> in_host_memory(kCount, 1);
      Request request = AllreduceInPlace(self, "mixed", data.get(), kCount);
      if (self.rank == host_rank) {
        request.device_work = nullptr;
        request.inputs[0].data = in_host_memory.data();
        request.outputs[0] = in_host_memory.data();
      }
      verdicts.Add(self.engine().Run(std::move(request)));
      ExpectUsable(self);
    });
    EXPECT_EQ(verdicts.code(), StatusCode::kRankMismatch);
    EXPECT_TRUE(Contains(verdicts.text(), "host memory (CPU)"))
        << verdicts.text();
  }
}

// From host memory, in which the name has a channel by then, to a device on one
// rank; and back to agreement on either.
RING_TEST(ANameMayMoveBetweenHostAndDevice) {
  Verdicts verdicts;
  RunDeviceRanks(Ranks(2), [&](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    std::vector<float> in_host_memory(kCount, 1);
    const auto run = [&](bool on_device) {
      Request request = AllreduceInPlace(self, "moving", data.get(), kCount);
      request.reduce_op = ReduceOp::kMax;
      if (!on_device) {
        request.device_work = nullptr;
        request.inputs[0].data = in_host_memory.data();
        request.outputs[0] = in_host_memory.data();
      }
      return self.engine().Run(std::move(request));
    };
    for (int use = 0; use < 4; ++use) EXPECT_OK(run(false));
    for (int use = 0; use < 2; ++use) EXPECT_OK(run(true));
    for (int use = 0; use < 4; ++use) EXPECT_OK(run(false));
    verdicts.Add(run(self.rank == 1));
    for (int use = 0; use < 4; ++use) EXPECT_OK(run(use % 2 == 0));
  });
  EXPECT_EQ(verdicts.code(), StatusCode::kRankMismatch);
}

// They use up their places in the order of launches, on whatever rank they came
// first.
RING_TEST(MismatchesLeaveTheOrderWhole) {
  RunDeviceRanks(Ranks(3), [](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    std::vector<std::unique_ptr<Submitted>> good;
    std::vector<std::unique_ptr<Submitted>> bad;
    for (int i = 0; i < 6; ++i) {
      const int index = self.rank == 1 ? 5 - i : i;
      Request request =
          AllreduceInPlace(self, StrCat("tensor ", index), data.get(), kCount);
      request.reduce_op = ReduceOp::kMin;
      const bool is_bad = index % 2 == 1;
      if (is_bad && self.rank == index / 2)
        request.inputs[0].shape = {1, kCount};
      (is_bad ? bad : good)
          .push_back(std::make_unique<Submitted>(self, std::move(request)));
    }
    for (const auto& submitted : good) EXPECT_OK(submitted->Outcome());
    for (const auto& submitted : bad) {
      EXPECT_EQ(submitted->Outcome().code(), StatusCode::kRankMismatch);
      EXPECT_EQ(submitted->launches(), 0);
    }
    ExpectUsable(self);
  });
}

// Whatever rank cannot take part, the others are told at once.
RING_TEST(ARankThatCannotTakePartSaysSo) {
  for (int unable : {0, 1}) {
    RunDeviceRanks(Ranks(2), [&](DeviceRank& self) {
      ExpectUsable(self);
      const DeviceArray<float> data(std::vector<float>(kCount, 1));
      Request request = AllreduceInPlace(self, "elsewhere", data.get(), kCount);
      if (self.rank == unable) {
        ASSERT_EQ(cudaSetDevice(3), 0);
        const TestStream elsewhere;
        request.device_work = DeviceWork::After(3, elsewhere.get()).value();
        ASSERT_EQ(cudaSetDevice(self.rank), 0);
      }
      const Status status = self.engine().Run(std::move(request));
      EXPECT_EQ(status.code(), self.rank == unable
                                   ? StatusCode::kInvalidArgument
                                   : StatusCode::kRankMismatch);
      EXPECT_TRUE(Contains(status.message(), "Use one GPU per rank"))
          << status.message();
      ExpectUsable(self);
    });
  }
}

// Rank 1's device never comes to the collective while the gate is closed.
class HeldUp {
 public:
  explicit HeldUp(DeviceRank& self)
      : self_(self),
        data_(std::vector<float>(kCount, 1)),
        gate_(self.rank == 1 ? RingKerasStandInHold(self.stream) : nullptr),
        first_(self, AllreduceInPlace(self, "first", data_.get(), kCount)),
        second_(self, AllreduceInPlace(self, "second", data_.get(), kCount)) {
    EXPECT_TRUE(WaitFor([&] { return second_.launched(); }));
    // The first rank to pass it may end what the others are in.
    Request barrier;
    barrier.name = "all are held up";
    (void)self.engine().Run(std::move(barrier));
  }

  ~HeldUp() { Release(); }

  // Returns when the communicator is broken on every rank, as a further
  // collective tells each: rank 1's device could still serve one that has not
  // heard of it.
  void WaitUntilBroken(std::latch& on_all) {
    Submitted further(self_,
                      AllreduceInPlace(self_, StrCat("of rank ", self_.rank),
                                       data_.get(), kCount));
    EXPECT_FALSE(further.Outcome().ok());
    EXPECT_EQ(further.launches(), 0);
    on_all.arrive_and_wait();
  }

  // Both must fail alike; on rank 1 when its device may go on.
  Status Outcome() {
    if (gate_ != nullptr) {
      EXPECT_FALSE(first_.ended());
    }
    Release();
    const Status status = first_.Outcome();
    EXPECT_EQ(second_.Outcome().message(), status.message());
    // The device is done with it.
    EXPECT_EQ(cudaStreamSynchronize(self_.stream), 0);
    return status;
  }

 private:
  void Release() {
    if (void* gate = std::exchange(gate_, nullptr)) RingKerasStandInOpen(gate);
  }

  DeviceRank& self_;
  DeviceArray<float> data_;
  void* gate_;
  Submitted first_;
  Submitted second_;
};

RING_TEST(ALostRankEndsWhatIsOnTheDevice) {
  Verdicts verdicts;
  std::latch broken(3);
  RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
    HeldUp held_up(self);
    self.engine().OnRankEvent({RankEvent::Kind::kLost, 1, "rank 1 died"});
    held_up.WaitUntilBroken(broken);
    verdicts.Add(held_up.Outcome());
  });
  EXPECT_EQ(verdicts.code(), StatusCode::kPeerLost);
  EXPECT_EQ(verdicts.text(), "rank 1 died");
}

RING_TEST(TheDeadlineEndsWhatIsOnTheDevice) {
  RankOptions options = Ranks(3);
  options.collective_timeout_s = 2;
  std::latch broken(3);
  RunDeviceRanks(options, [&](DeviceRank& self) {
    HeldUp held_up(self);
    held_up.WaitUntilBroken(broken);
    const Status status = held_up.Outcome();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), "the GPU, which has been given"))
        << status.message();
  });
}

// NCCL finds an error, of which the store knows nothing.
RING_TEST(AnErrorOfNcclsIsToldToAll) {
  Verdicts verdicts;
  std::latch broken(3);
  RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
    HeldUp held_up(self);
    if (self.rank == 0) RingKerasStandInFailCommunicators(kRemoteError);
    held_up.WaitUntilBroken(broken);
    verdicts.Add(held_up.Outcome());
  });
  EXPECT_TRUE(Contains(verdicts.text(), "remote process exited"))
      << verdicts.text();
}

// The store's word is the better one, and comes while NCCL's is known.
RING_TEST(TheStoresWordGoesBeforeNccls) {
  Verdicts verdicts;
  std::latch broken(3);
  RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
    HeldUp held_up(self);
    if (self.rank == 0) RingKerasStandInFailCommunicators(kRemoteError);
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * self.rank));
    self.engine().OnRankEvent({RankEvent::Kind::kLost, 1, "rank 1 died"});
    held_up.WaitUntilBroken(broken);
    verdicts.Add(held_up.Outcome());
  });
  EXPECT_EQ(verdicts.text(), "rank 1 died");
}

RING_TEST(AShutdownEndsWhatIsOnTheDevice) {
  for (int leaver : {0, 1, 2}) {
    std::latch broken(3);
    RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
      HeldUp held_up(self);
      if (self.rank == leaver) self.engine().Stop();
      held_up.WaitUntilBroken(broken);
      const Status status = held_up.Outcome();
      EXPECT_EQ(status.code(), self.rank == leaver ? StatusCode::kAborted
                                                   : StatusCode::kPeerStopped);
      EXPECT_TRUE(Contains(status.message(), "called shutdown() while"))
          << status.message();
    });
  }
}

// At another moment in every round: before, while and after the communicator is
// connected.
RING_TEST(ALossAtAnyMomentEndsEverything) {
  for (int round = 0; round < 8; ++round) {
    RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
      const DeviceArray<float> data(std::vector<float>(kCount, 1));
      std::vector<std::unique_ptr<Submitted>> submitted;
      for (int i = 0; i < 5; ++i) {
        submitted.push_back(std::make_unique<Submitted>(
            self,
            AllreduceInPlace(self, StrCat("tensor ", i), data.get(), kCount)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      self.engine().OnRankEvent(
          {RankEvent::Kind::kLost, (self.rank + 1) % 3, "a rank died"});
      for (const auto& one : submitted) {
        ASSERT_TRUE(WaitFor([&] { return one->ended(); }))
            << "rank " << self.rank << " round " << round;
        EXPECT_FALSE(one->ended_before_launched());
      }
    });
  }
}

RING_TEST(ARankWithoutMemoryForItsOutputIsToldToAll) {
  Verdicts verdicts;
  RunDeviceRanks(Ranks(2), [&](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    Request request = self.MakeRequest(CollectiveKind::kAllgather, "gather",
                                       DataType::kFloat32);
    request.inputs = {{data.get(), {kCount}}};
    request.allocate_output = [&](const Shape&) -> StatusOr<void*> {
      if (self.rank == 0) {
        return Status(StatusCode::kResourceExhausted, "the GPU is full");
      }
      return static_cast<void*>(data.get());
    };
    const DeviceArray<float> output(2 * kCount);
    if (self.rank == 1) {
      request.allocate_output = [&](const Shape&) -> StatusOr<void*> {
        return static_cast<void*>(output.get());
      };
    }
    Submitted submitted(self, std::move(request));
    verdicts.Add(submitted.Outcome());
  });
  EXPECT_EQ(verdicts.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(verdicts.text(), "the GPU is full");
}

void Barrier(DeviceRank& self, const char* name) {
  Request barrier;
  barrier.name = name;
  EXPECT_OK(self.engine().Run(std::move(barrier)));
}

// NCCL's abort of one returns when the stream has come past its last
// collective, which is behind the other's, which its own abort ends.
RING_TEST(ALostRankEndsWhatTwoCommunicatorsHaveOnTheDevice) {
  std::latch over(2);
  RunDeviceRanks(Ranks(3), [&](DeviceRank& self) {
    self.engine().AddCommunicator(1, {0, 1, 2});
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    void* gate = self.rank == 1 ? RingKerasStandInHold(self.stream) : nullptr;
    std::vector<std::unique_ptr<Submitted>> submitted;
    for (const int communicator : {1, 0, 1}) {
      Request request = AllreduceInPlace(
          self, StrCat("launch ", submitted.size()), data.get(), kCount);
      request.communicator_id = communicator;
      submitted.push_back(
          std::make_unique<Submitted>(self, std::move(request)));
    }
    for (const auto& one : submitted) {
      EXPECT_TRUE(WaitFor([&] { return one->launched(); }));
    }
    Barrier(self, "all are held up");
    self.engine().OnRankEvent({RankEvent::Kind::kLost, 1, "rank 1 died"});
    if (self.rank != 1) {
      for (const auto& one : submitted) {
        EXPECT_EQ(one->Outcome().message(), "rank 1 died");
      }
      over.count_down();
    } else {
      over.wait();
      RingKerasStandInOpen(gate);
    }
  });
}

// A rank without what it takes is no failure: GPUs connect later then.
RING_TEST(ASplitThatARankCannotTakePartInIsLeftOut) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    const DeviceArray<float> data(std::vector<float>(kCount, 1));
    self.engine().AddCommunicator(1, {0, 1});
    EXPECT_OK(self.engine().SplitDevices(1, self.rank == 1 ? 999 : 0));
    Request request = AllreduceInPlace(self, "later", data.get(), kCount);
    request.communicator_id = 1;
    EXPECT_OK(self.engine().Run(std::move(request)));
    ExpectUsable(self);
  });
}

RING_TEST(ASplitThatBreaksTheJobIsAnErrorOnAll) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    ExpectUsable(self);
    self.engine().AddCommunicator(1, {0, 1});
    Barrier(self, "all are connected");
    if (self.rank == 0) RingKerasStandInFailCommunicators(kRemoteError);
    Barrier(self, "they fail from here on");
    EXPECT_FALSE(self.engine().SplitDevices(1, self.rank).ok());
  });
}

// What holds up a collective on the GPU is another, of another communicator.
RING_TEST(TheStallWatchNamesTheEarlierLaunch) {
  RankOptions options = Ranks(3);
  options.stall_warning_s = 0.2;
  StandardErrorCapture capture;
  RunDeviceRanks(options, [&](DeviceRank& self) {
    self.engine().AddCommunicator(1, {0, 1});
    const DeviceArray<float> early(std::vector<float>(kCount, 1));
    const DeviceArray<float> late(std::vector<float>(kCount, 1));
    if (self.rank == 2) {
      EXPECT_TRUE(WaitFor([&] {
        return Contains(capture.Text(),
                        "its turn on the GPU: before it comes allreduce "
                        "'early', which waits for rank 2 of 3");
      })) << capture.Text();
    }
    const Submitted first(self,
                          AllreduceInPlace(self, "early", early.get(), kCount));
    if (self.rank != 2) {
      Request request = AllreduceInPlace(self, "late", late.get(), kCount);
      request.communicator_id = 1;
      const Submitted second(self, std::move(request));
      EXPECT_OK(second.Outcome());
    }
    EXPECT_OK(first.Outcome());
  });
}

// All ranks are there, so that the launch thread, which waits for memory here
// and for NCCL otherwise, is what holds it up.
RING_TEST(TheStallWatchNamesNccl) {
  RankOptions options = Ranks(2);
  options.stall_warning_s = 0.2;
  StandardErrorCapture capture;
  RunDeviceRanks(options, [&](DeviceRank& self) {
    const DeviceArray<float> input(std::vector<float>(kCount, 1));
    const DeviceArray<float> output(2 * kCount);
    std::promise<void> seen;
    Request request = self.MakeRequest(CollectiveKind::kAllgather, "held up",
                                       DataType::kFloat32);
    request.inputs = {{input.get(), {kCount}}};
    request.allocate_output = [&](const Shape&) -> StatusOr<void*> {
      if (self.rank == 0) seen.get_future().wait();
      return static_cast<void*>(output.get());
    };
    const Submitted submitted(self, std::move(request));
    if (self.rank == 0) {
      constexpr char kWords[] =
          "s for NCCL to take it on this rank's GPU: it connects, or has "
          "earlier work; NCCL_DEBUG=INFO says more.";
      EXPECT_TRUE(WaitFor([&] { return Contains(capture.Text(), kWords); }))
          << capture.Text();
      seen.set_value();
    }
    EXPECT_OK(submitted.Outcome());
  });
}

// The last test: after all of the above.
RING_TEST(FailuresLeaveNothingBehind) {
  EXPECT_EQ(RingKerasStandInCommunicators(), 0);
  EXPECT_EQ(RingKerasStandInStreams(), 0);
  EXPECT_EQ(RingKerasStandInAllocations(), 0);
}

}  // namespace
}  // namespace ring_keras
