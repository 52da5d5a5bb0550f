// Ranks that join take part in what the others go on with, as if they were not
// there.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::FloatRequest;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

// Shared memory, TCP, and both at once (two hosts).
std::vector<RankOptions> SetupsToJoin() {
  std::vector<RankOptions> setups;
  for (int size : {1, 2, 3, 4}) {
    setups.push_back({size, "auto", 1});
    if (size > 1) setups.push_back({size, "tcp", 1});
    if (size > 2) setups.push_back({size, "auto", 2});
  }
  return setups;
}

std::vector<RankOptions> SetupsOfSeveral() {
  std::vector<RankOptions> setups = SetupsToJoin();
  setups.erase(setups.begin());
  return setups;
}

Request JoinRequest(int* last, int communicator_id = 0) {
  Request request;
  request.kind = CollectiveKind::kJoin;
  request.name = "ring_keras/join";
  request.communicator_id = communicator_id;
  request.last_joined = last;
  return request;
}

// Joins; the last rank to do so.
int JoinAll(Rank& self, int communicator_id = 0) {
  int last = -1;
  EXPECT_OK(self.engine->Run(JoinRequest(&last, communicator_id)));
  return last;
}

void AllocateFor(std::vector<float>* output, Request* request) {
  request->outputs.clear();
  request->allocate_output = [output](const Shape& shape) -> StatusOr<void*> {
    output->assign(ElementCount(shape), -1.0f);
    return static_cast<void*>(output->data());
  };
}

// What a rank brings to its `use`-th use; exact in a sum.
float ValueOf(int rank, int use) {
  return static_cast<float>((1 << rank) + 16 * (use % 5));
}

// Ranks make different numbers of uses, each rank in turn the most.
class Uses {
 public:
  Uses(int size, int shift) : size_(size), shift_(shift) {}
  int of(int rank) const { return 1 + 2 * ((rank + shift_) % size_); }
  int last() const {
    int last = 0;
    for (int rank = 1; rank < size_; ++rank) {
      if (of(rank) > of(last)) last = rank;
    }
    return last;
  }
  std::vector<int> ActiveIn(int use) const {
    std::vector<int> active;
    for (int rank = 0; rank < size_; ++rank) {
      if (use < of(rank)) active.push_back(rank);
    }
    return active;
  }
  float SumIn(int use) const {
    float sum = 0;
    for (int rank : ActiveIn(use)) sum += ValueOf(rank, use);
    return sum;
  }

 private:
  int size_;
  int shift_;
};

RING_TEST(SumsGoOnWithoutWhoHasJoined) {
  for (const RankOptions& setup : SetupsToJoin()) {
    RunRanks(setup, [](Rank& self) {
      // Several joins in a row, in every order of the ranks.
      for (int epoch = 0; epoch < 4; ++epoch) {
        const Uses uses(self.size, epoch);
        for (int use = 0; use < uses.of(self.rank); ++use) {
          for (int64_t count : {33, 300001}) {
            std::vector<float> data(count, ValueOf(self.rank, use));
            ASSERT_OK(self.engine->Run(Allreduce(StrCat("sum", count), data)));
            const float sum = uses.SumIn(use);
            for (float value : data) ASSERT_EQ(value, sum);
          }
        }
        ASSERT_EQ(JoinAll(self), uses.last());
        // All are there again: in the names' channels, soon.
        for (int use = 0; use < 3; ++use) {
          std::vector<float> data(33, 1.0f);
          ASSERT_OK(self.engine->Run(Allreduce("sum33", data)));
          ASSERT_EQ(data[32], static_cast<float>(self.size));
        }
      }
    });
  }
}

RING_TEST(AveragesDivideByWhatTheOthersBring) {
  for (const RankOptions& setup : SetupsToJoin()) {
    RunRanks(setup, [](Rank& self) {
      for (int epoch = 0; epoch < 2; ++epoch) {
        const Uses uses(self.size, epoch);
        const bool weighted = epoch % 2 == 1;
        const auto weight_of = [&](int rank) {
          return weighted ? rank + 0.5 : 1.0;
        };
        for (int use = 0; use < uses.of(self.rank); ++use) {
          double sum = 0;
          double total = 0;
          for (int rank : uses.ActiveIn(use)) {
            sum += weight_of(rank) * ValueOf(rank, use);
            total += weight_of(rank);
          }
          const auto is_mean = [&](float value) {
            return std::abs(value - sum / total) < 1e-4;
          };
          for (int64_t count : {5, 100001}) {
            std::vector<float> data(count, ValueOf(self.rank, use));
            Request mean =
                Allreduce(StrCat("mean", count), data, ReduceOp::kAverage);
            mean.weight = weight_of(self.rank);
            ASSERT_OK(self.engine->Run(std::move(mean)));
            for (float value : data) ASSERT_TRUE(is_mean(value)) << value;
          }
          std::vector<float> data(self.size, ValueOf(self.rank, use));
          std::vector<float> part;
          Request scatter =
              FloatRequest(CollectiveKind::kReduceScatter, "scatter", data);
          scatter.reduce_op = ReduceOp::kAverage;
          scatter.weight = weight_of(self.rank);
          AllocateFor(&part, &scatter);
          ASSERT_OK(self.engine->Run(std::move(scatter)));
          ASSERT_EQ(part.size(), size_t{1});
          ASSERT_TRUE(is_mean(part[0])) << part[0];
        }
        ASSERT_EQ(JoinAll(self), uses.last());
      }
    });
  }
}

RING_TEST(CompressedTensorsAreStoodInFor) {
  RunRanks({4, "auto", 2}, [](Rank& self) {
    const Uses uses(self.size, 0);
    for (int use = 0; use < uses.of(self.rank); ++use) {
      for (int64_t count : {100, 100000}) {
        std::vector<float> data(count, 2.0f);
        Request request =
            Allreduce(StrCat("narrow", count), data, ReduceOp::kAverage);
        request.wire_dtype = DataType::kBfloat16;
        ASSERT_OK(self.engine->Run(std::move(request)));
        // A weight of 4/3 is rounded.
        for (float value : data) ASSERT_TRUE(std::abs(value - 2.0f) < 0.02f);
      }
    }
    ASSERT_EQ(JoinAll(self), uses.last());
  });
}

RING_TEST(OtherKindsGoOnToo) {
  for (const RankOptions& setup : SetupsToJoin()) {
    RunRanks(setup, [](Rank& self) {
      for (int epoch = 0; epoch < 3; ++epoch) {
        const Uses uses(self.size, epoch);
        for (int use = 0; use < uses.of(self.rank); ++use) {
          const std::vector<int> active = uses.ActiveIn(use);
          Request barrier;
          barrier.name = "barrier";
          ASSERT_OK(self.engine->Run(std::move(barrier)));

          std::vector<float> rows(self.rank + 1, ValueOf(self.rank, use));
          std::vector<float> gathered;
          Request gather =
              FloatRequest(CollectiveKind::kAllgather, "gather", rows);
          AllocateFor(&gathered, &gather);
          ASSERT_OK(self.engine->Run(std::move(gather)));
          std::vector<float> expected;
          for (int rank : active) {
            expected.insert(expected.end(), rank + 1, ValueOf(rank, use));
          }
          ASSERT_TRUE(gathered == expected);

          std::vector<float> to_all(2 * self.size, ValueOf(self.rank, use));
          std::vector<float> from_all;
          std::vector<int64_t> splits;
          Request swap =
              FloatRequest(CollectiveKind::kAlltoall, "swap", to_all);
          swap.received_splits = &splits;
          AllocateFor(&from_all, &swap);
          ASSERT_OK(self.engine->Run(std::move(swap)));
          expected.clear();
          std::vector<int64_t> expected_splits(self.size, 0);
          for (int rank : active) {
            expected.insert(expected.end(), 2, ValueOf(rank, use));
            expected_splits[rank] = 2;
          }
          ASSERT_TRUE(from_all == expected);
          ASSERT_TRUE(splits == expected_splits);

          const int root = active[use % active.size()];
          for (int64_t count : {20, 90000}) {
            std::vector<float> data(count, ValueOf(self.rank, use));
            Request broadcast = FloatRequest(CollectiveKind::kBroadcast,
                                             StrCat("root", count), data);
            broadcast.root = root;
            ASSERT_OK(self.engine->Run(std::move(broadcast)));
            for (float value : data) ASSERT_EQ(value, ValueOf(root, use));
          }
        }
        ASSERT_EQ(JoinAll(self), uses.last());
      }
    });
  }
}

// A join waits for what its rank has under way, and the others for the join.
RING_TEST(WhatIsUnderWayWhenARankJoinsEndsFirst) {
  for (const RankOptions& setup : SetupsToJoin()) {
    RunRanks(setup, [](Rank& self) {
      for (int epoch = 0; epoch < 4; ++epoch) {
        const Uses uses(self.size, epoch);
        const std::vector<std::string> names = {"a", "b", "c"};
        struct Use {
          std::vector<float> data;
          float expected;
        };
        std::vector<std::unique_ptr<Use>> under_way;
        std::atomic<int> ended{0};
        for (int use = 0; use < uses.of(self.rank); ++use) {
          for (const std::string& name : names) {
            under_way.push_back(std::make_unique<Use>());
            Use& one = *under_way.back();
            one.data.assign(name == "c" ? 150000 : 7, ValueOf(self.rank, use));
            one.expected = uses.SumIn(use);
            self.engine->Submit(Allreduce(name, one.data),
                                [&ended](const Status& status) {
                                  EXPECT_OK(status);
                                  ++ended;
                                });
          }
        }
        ASSERT_EQ(JoinAll(self), uses.last());
        ASSERT_EQ(ended.load(), static_cast<int>(under_way.size()));
        for (const auto& one : under_way) {
          for (float value : one->data) ASSERT_EQ(value, one->expected);
        }
      }
    });
  }
}

// Every use of its shared buffer by one rank meets private zeros of another.
RING_TEST(SharedBuffersMeetZerosElsewhere) {
  for (int size : {2, 3, 4}) {
    RunRanks({size, "auto", 1}, [](Rank& self) {
      constexpr int64_t kCount = 50000;
      auto buffer =
          self.engine->mesh().buffers().Allocate(kCount * sizeof(float));
      ASSERT_OK(buffer.status());
      float* data = static_cast<float*>(buffer.value().get());
      for (int epoch = 0; epoch < 3; ++epoch) {
        const Uses uses(self.size, epoch);
        for (int use = 0; use < uses.of(self.rank); ++use) {
          std::fill(data, data + kCount, ValueOf(self.rank, use));
          Request request;
          request.kind = CollectiveKind::kAllreduce;
          request.name = "shared";
          request.dtype = DataType::kFloat32;
          request.inputs = {{data, {kCount}}};
          request.outputs = {data};
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (int64_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(data[i], uses.SumIn(use));
          }
        }
        ASSERT_EQ(JoinAll(self), uses.last());
      }
    });
  }
}

// Rank 0 of the job is in the first set alone, so it hears of no join there.
RING_TEST(AProcessSetJoinsByItself) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    RunRanks(setup, [](Rank& self) {
      std::vector<int> upper;
      for (int rank = 1; rank < self.size; ++rank) upper.push_back(rank);
      self.engine->AddCommunicator(1, upper);
      for (int epoch = 0; epoch < 3; ++epoch) {
        const int members = self.size - 1;
        const Uses uses(members, epoch);
        const int place = self.rank - 1;
        for (int use = 0; self.rank > 0 && use < uses.of(place); ++use) {
          std::vector<float> data(9, ValueOf(place, use));
          Request request = Allreduce("step", data);
          request.communicator_id = 1;
          ASSERT_OK(self.engine->Run(std::move(request)));
          ASSERT_EQ(data[8], uses.SumIn(use));
        }
        if (self.rank > 0) {
          ASSERT_EQ(JoinAll(self, 1), uses.last() + 1);
        }
        std::vector<float> data(9, 1.0f);
        ASSERT_OK(self.engine->Run(Allreduce("step", data)));
        ASSERT_EQ(data[8], static_cast<float>(self.size));
      }
    });
  }
}

// Rank 0 is in its join; each of the others hears why a collective cannot be.
RING_TEST(WhatNeedsEveryRankFailsByNameAndThenAllGoOn) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    RunRanks(setup, [](Rank& self) {
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<float> data(10, 1.0f);
        const auto expect_refusal = [&](Request request, const char* why) {
          const Status status = self.engine->Run(std::move(request));
          ASSERT_EQ(status.code(), StatusCode::kRankMismatch);
          for (const char* part : {"rank 0 cannot take part", "join()", why}) {
            EXPECT_TRUE(status.message().find(part) != std::string::npos)
                << status.message();
          }
        };
        if (self.rank > 0) {
          for (int use = 0; use < 3; ++use) {
            for (ReduceOp op :
                 {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
              expect_refusal(Allreduce("extreme", data, op), NameOf(op));
            }
            Request broadcast =
                FloatRequest(CollectiveKind::kBroadcast, "root", data);
            broadcast.root = 0;
            expect_refusal(std::move(broadcast), "root");
            std::vector<float> output;
            Request gather =
                FloatRequest(CollectiveKind::kAllgather, "gather", data);
            gather.even_rows = true;
            AllocateFor(&output, &gather);
            expect_refusal(std::move(gather), "XLA");
            Request scalar =
                FloatRequest(CollectiveKind::kAllgather, "scalar", data);
            scalar.inputs[0].shape = {};
            AllocateFor(&output, &scalar);
            expect_refusal(std::move(scalar), "scalar");
            Request own;
            own.name = "ring_keras/agree";
            expect_refusal(std::move(own), "every rank");
          }
          ASSERT_OK(self.engine->Run(Allreduce("fine", data)));
          ASSERT_EQ(data[9], static_cast<float>(self.size - 1));
        }
        EXPECT_TRUE(JoinAll(self) > 0);
        std::fill(data.begin(), data.end(), 1.0f);
        for (const char* name : {"extreme", "fine"}) {
          ASSERT_OK(self.engine->Run(Allreduce(name, data, ReduceOp::kMax)));
          ASSERT_EQ(data[9], 1.0f);
        }
      }
    });
  }
}

RING_TEST(AMistakeOfTheOthersIsStillTheirs) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    if (setup.size < 3) continue;
    RunRanks(setup, [](Rank& self) {
      if (self.rank > 0) {
        std::vector<float> data(self.rank == 1 ? 5 : 6, 1.0f);
        const Status differ = self.engine->Run(Allreduce("shape", data));
        EXPECT_EQ(differ.code(), StatusCode::kRankMismatch);
        Request heavy = Allreduce("heavy", data, ReduceOp::kAverage);
        if (self.rank == 1) heavy.weight = -1;
        const Status wrong = self.engine->Run(std::move(heavy));
        EXPECT_FALSE(wrong.ok());
        EXPECT_TRUE(wrong.message().find("weight is -1") != std::string::npos)
            << wrong.message();
      }
      EXPECT_TRUE(JoinAll(self) > 0);
    });
  }
}

RING_TEST(ARankInAJoinEntersNothingElse) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    std::atomic<bool> tried{false};
    RunRanks(setup, [&](Rank& self) {
      if (self.rank > 0) {
        WaitFor([&] { return tried.load(); });
        JoinAll(self);
        return;
      }
      std::thread joining([&self] { JoinAll(self); });
      WaitFor([&] { return self.engine->pending_count() > 0; });
      std::vector<float> data(3);
      int last = 0;
      for (Request request : {Allreduce("more", data), JoinRequest(&last)}) {
        const Status status = self.engine->Run(std::move(request));
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_TRUE(status.message().find("rank 0 is in join()") !=
                    std::string::npos)
            << status.message();
      }
      tried = true;
      joining.join();
    });
  }
}

RING_TEST(ALostRankEndsTheJoin) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    RunRanks(setup, [](Rank& self) {
      const int victim = self.size - 1;
      if (self.rank == victim) return;
      std::atomic<bool> ended{false};  // The victim left before it was seen.
      std::thread verdict([&self, &ended, victim] {
        WaitFor([&] { return self.engine->pending_count() > 0 || ended; });
        self.engine->OnRankEvent(
            {RankEvent::Kind::kLost, victim, "a rank died"});
      });
      int last = 0;
      const Status status = self.engine->Run(JoinRequest(&last));
      ended = true;
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      verdict.join();
    });
  }
}

RING_TEST(ARankThatLeavesWithoutJoiningIsNamed) {
  for (const RankOptions& setup : SetupsOfSeveral()) {
    RunRanks(setup, [](Rank& self) {
      if (self.rank == self.size - 1) return;
      int last = 0;
      const Status status = self.engine->Run(JoinRequest(&last));
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      EXPECT_TRUE(status.message().find("still waits for it") !=
                  std::string::npos)
          << status.message();
    });
  }
}

// Whoever waits in a join is not late while the others go on.
RING_TEST(AJoinMayTakeLongerThanACollective) {
  for (const char* transport : {"auto", "tcp"}) {
    RankOptions setup{2, transport, 1};
    setup.collective_timeout_s = 2;
    RunRanks(setup, [](Rank& self) {
      const auto start = std::chrono::steady_clock::now();
      const auto is_over = [&] {
        return std::chrono::steady_clock::now() - start >
               std::chrono::milliseconds(2500);
      };
      while (self.rank == 1 && !is_over()) {
        Request barrier;
        barrier.name = "step";
        ASSERT_OK(self.engine->Run(std::move(barrier)));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      ASSERT_EQ(JoinAll(self), 1);
    });
  }
}

}  // namespace
}  // namespace ring_keras
