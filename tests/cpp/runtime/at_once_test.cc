// Calls that are made again and again, and end before anybody drives: whatever
// the other ranks do, everything must be as it is for operations.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
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
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

// As Runtime::Run(); counts in `at_once`, unless it is null, those that ended
// so.
Status MakeCall(Engine& engine, RepeatedCall& call,
                std::atomic<int>* at_once = nullptr) {
  std::unique_ptr<BegunCall> begun;
  if (engine.RunAtOnce(call, &begun)) {
    if (at_once != nullptr) ++*at_once;
    return Status::Ok();
  }
  if (begun != nullptr) return engine.Finish(std::move(begun));
  return engine.Run(call.request());
}

// Numbers that differ by rank, use and place.
float InputAt(int rank, int use, size_t i) {
  return static_cast<float>((i * 5 + rank * 3 + use) % 101);
}

void FillFor(float* data, size_t count, int rank, int use) {
  for (size_t i = 0; i < count; ++i) data[i] = InputAt(rank, use, i);
}

void ExpectSumOfAll(const float* data, size_t count, int size, int use) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += InputAt(rank, use, i);
    if (data[i] != sum) {
      ASSERT_EQ(data[i], sum) << "at " << i << " in use " << use;
    }
  }
}

// Each rank makes some of its calls as operations, and some late.
RING_TEST(CallsAndOperationsOfOneNameMeet) {
  // More than two ranks may have no core each, and then always wait.
  std::atomic<int> at_once{0};
  for (int size : {2, 3, 4}) {
    RunRanks({size, "auto", 1}, [&](Rank& self) {
      std::mt19937 chance(self.rank);
      for (size_t count : {1, 17, 5000, 32768, 70000}) {
        std::vector<float> data(count);
        RepeatedCall call(Allreduce(StrCat("mixed ", count), data));
        for (int use = 0; use < 150; ++use) {
          FillFor(data.data(), count, self.rank, use);
          if (chance() % 5 == 0) sched_yield();
          ASSERT_OK(chance() % 3 == 0 ? self.engine->Run(call.request())
                                      : MakeCall(*self.engine, call, &at_once));
          ExpectSumOfAll(data.data(), count, size, use);
        }
      }
    });
  }
  EXPECT_TRUE(at_once > 0);
}

RING_TEST(SharedBuffersAreReducedAtOnce) {
  // More than two ranks may have no core each, and then always wait.
  std::atomic<int> at_once{0};
  for (int size : {2, 3, 4}) {
    RunRanks({size, "auto", 1}, [&](Rank& self) {
      std::mt19937 chance(self.rank);
      BufferAllocator& buffers = self.engine->mesh().buffers();
      for (int64_t count : {1, 16, 5000, 300000}) {
        auto buffer = buffers.Allocate(count * sizeof(float));
        ASSERT_OK(buffer.status());
        auto* shared = static_cast<float*>(buffer.value().get());
        std::vector<float> own(count);
        const std::string name = StrCat("buffers ", count);
        Request request = Allreduce(name, own);
        RepeatedCall of_private(request);
        request.inputs[0].data = request.outputs[0] = shared;
        RepeatedCall of_shared(std::move(request));
        for (int use = 0; use < 60; ++use) {
          // One rank has memory of its own now and then.
          const bool is_private = use % 7 == 6 && self.rank == 1;
          float* data = is_private ? own.data() : shared;
          RepeatedCall& call = is_private ? of_private : of_shared;
          FillFor(data, count, self.rank, use);
          if (chance() % 5 == 0) sched_yield();
          ASSERT_OK(chance() % 3 == 0 ? self.engine->Run(call.request())
                                      : MakeCall(*self.engine, call, &at_once));
          ExpectSumOfAll(data, count, size, use);
        }
      }
    });
  }
  EXPECT_TRUE(at_once > 0);
}

// A kept algorithm divides by the number of ranks once in each use.
RING_TEST(MeansStayMeansAndWeightsCount) {
  RunRanks({3, "auto", 1}, [](Rank& self) {
    std::vector<float> data(33);
    RepeatedCall call(Allreduce("mean", data, ReduceOp::kAverage));
    for (int use = 0; use < 60; ++use) {
      std::fill(data.begin(), data.end(), 3.0f * static_cast<float>(self.rank));
      const bool weighed = use % 10 == 9 && self.rank == 2;
      Request request = call.request();
      if (weighed) request.weight = 2;
      ASSERT_OK(weighed ? self.engine->Run(std::move(request))
                        : MakeCall(*self.engine, call));
      // (0 + 3 + 6) / 3, or (0 + 3 + 2 * 6) / 4.
      ASSERT_EQ(data[0], use % 10 == 9 ? 3.75f : 3.0f);
      ASSERT_EQ(data[32], data[0]);
    }
  });
}

RING_TEST(ADisagreementIsNamedOnEveryRank) {
  for (int size : {2, 3}) {
    RunRanks({size, "auto", 1}, [](Rank& self) {
      std::vector<float> data(100);
      std::vector<float> others(50);
      RepeatedCall call(Allreduce("shape", data));
      RepeatedCall other(Allreduce("shape", others));
      for (int use = 0; use < 40; ++use) {
        const bool differ = use % 8 == 7;
        const bool odd_one = differ && self.rank == self.size - 1;
        FillFor(data.data(), 100, self.rank, use);
        const Status status = MakeCall(*self.engine, odd_one ? other : call);
        if (differ) {
          ASSERT_EQ(status.code(), StatusCode::kRankMismatch);
          EXPECT_TRUE(status.message().find("[50]") != std::string::npos);
        } else {
          ASSERT_OK(status);
          ExpectSumOfAll(data.data(), 100, self.size, use);
        }
      }
    });
  }
}

// More names than are remembered, and windows than are kept, come between two
// uses of a call; then another algorithm is chosen.
RING_TEST(WhatWasFoundOutBeforeMayBeNoMore) {
  RunRanks({3, "auto", 1}, [](Rank& self) {
    std::vector<float> data(60000);
    RepeatedCall call(Allreduce("old", data));
    auto buffer = self.engine->mesh().buffers().Allocate(data.size() * 4);
    ASSERT_OK(buffer.status());
    auto* shared = static_cast<float*>(buffer.value().get());
    int use = 0;
    const auto use_some = [&] {
      for (int last = use + 8; use < last; ++use) {
        FillFor(data.data(), data.size(), self.rank, use);
        ASSERT_OK(MakeCall(*self.engine, call));
        ExpectSumOfAll(data.data(), data.size(), self.size, use);
      }
    };
    use_some();
    for (int again = 0; again < 3; ++again) {
      for (int name = 0; name < 4200; ++name) {
        shared[0] = static_cast<float>(self.rank);
        Request request = Allreduce(StrCat("name ", name), data);
        request.inputs[0].data = request.outputs[0] = shared;
        ASSERT_OK(self.engine->Run(std::move(request)));
        ASSERT_EQ(shared[0], 3.0f);
      }
      use_some();
    }
    for (size_t flat_max_bytes : {size_t{0}, size_t{1} << 30}) {
      Request barrier;
      barrier.name = StrCat("tuned ", flat_max_bytes);
      ASSERT_OK(self.engine->Run(barrier));
      Tuning tuning;
      tuning.shared_flat_max_bytes = flat_max_bytes;
      self.engine->SetTuning(tuning);
      ASSERT_OK(self.engine->Run(barrier));
      use_some();
    }
  });
}

RING_TEST(ARankInAJoinBringsNothing) {
  RunRanks({3, "auto", 1}, [](Rank& self) {
    std::vector<float> data(10);
    RepeatedCall call(Allreduce("joined", data));
    for (int round = 0; round < 3; ++round) {
      const int uses = 20 + 5 * self.rank;
      for (int use = 0; use < uses; ++use) {
        std::fill(data.begin(), data.end(), 1.0f);
        ASSERT_OK(MakeCall(*self.engine, call));
        ASSERT_EQ(data[9], use < 20 ? 3.0f : use < 25 ? 2.0f : 1.0f);
      }
      int last = -1;
      Request join;
      join.kind = CollectiveKind::kJoin;
      join.name = "ring_keras/join";
      join.last_joined = &last;
      ASSERT_OK(self.engine->Run(std::move(join)));
      ASSERT_EQ(last, 2);
    }
  });
}

RING_TEST(EachIsRecordedOnce) {
  RunRanks({2, "auto", 1}, [](Rank& self) {
    constexpr int kUses = 300;
    std::vector<float> data(20);
    RepeatedCall call(Allreduce("recorded", data));
    for (int use = 0; use < kUses; ++use) {
      // Now and then the other has to wait, and becomes an operation.
      if (use % 20 == 19 && self.rank == use / 20 % 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_OK(MakeCall(*self.engine, call));
    }
    std::vector<CollectiveRecord> recent;
    self.engine->WithDriver([&] { recent = self.engine->recorder().Recent(); });
    ASSERT_EQ(recent.size(), size_t{kUses});
    Ticks last = 0;
    for (const CollectiveRecord& record : recent) {
      ASSERT_EQ(std::string(record.name), "recorded");
      ASSERT_EQ(record.nbytes, uint64_t{80});
      ASSERT_EQ(record.size, 2);
      ASSERT_EQ(record.step, uint64_t{0});
      ASSERT_TRUE(record.outcome == StatusCode::kOk);
      ASSERT_TRUE(record.last_rank == 0 || record.last_rank == 1);
      ASSERT_TRUE(last <= record.submitted_at);
      ASSERT_TRUE(record.submitted_at <= record.arrived_at);
      ASSERT_TRUE(record.arrived_at <= record.matched_at);
      ASSERT_TRUE(record.matched_at <= record.first_byte_at);
      ASSERT_TRUE(record.first_byte_at <= record.last_byte_at);
      ASSERT_TRUE(record.last_byte_at <= record.done_at);
      ASSERT_EQ(record.released_at, record.done_at);
      ASSERT_EQ(record.awaited_at, record.submitted_at);
      last = record.done_at;
    }
    ASSERT_EQ(self.engine->pending_count(), 0);
  });
}

// Its peers learn it from the store, while they make calls without end.
RING_TEST(ALostRankEndsTheCallsOfAllOthers) {
  for (bool in_buffers : {false, true}) {
    RunRanks({3, "auto", 1}, [&](Rank& self) {
      auto buffer = self.engine->mesh().buffers().Allocate(400);
      ASSERT_OK(buffer.status());
      std::vector<float> own(100);
      Request request = Allreduce("lost", own);
      if (in_buffers) {
        request.inputs[0].data = request.outputs[0] = buffer.value().get();
      }
      RepeatedCall call(std::move(request));
      for (int use = 0; use < 200; ++use)
        ASSERT_OK(MakeCall(*self.engine, call));
      if (self.rank == 2) return;
      self.engine->OnRankEvent({RankEvent::Kind::kLost, 2, "rank 2 died"});
      Status status;
      for (int use = 0; use < 3 && status.ok(); ++use) {
        status = MakeCall(*self.engine, call);
      }
      ASSERT_EQ(status.code(), StatusCode::kPeerLost);
      // And every one after it.
      ASSERT_EQ(MakeCall(*self.engine, call).code(), StatusCode::kPeerLost);
    });
  }
}

// Threads of one rank: names of their own, which all ranks use as often.
RING_TEST(ThreadsMakeCallsTogether) {
  RunRanks({2, "auto", 1}, [](Rank& self) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&self, thread] {
        std::vector<float> data(40);
        RepeatedCall call(Allreduce(StrCat("thread ", thread), data));
        for (int use = 0; use < 200; ++use) {
          FillFor(data.data(), data.size(), self.rank, use);
          ASSERT_OK(MakeCall(*self.engine, call));
          ExpectSumOfAll(data.data(), data.size(), self.size, use);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

RING_TEST(AStoppedEngineTakesNothing) {
  RunRanks({2, "auto", 1}, [](Rank& self) {
    std::vector<float> data(4);
    RepeatedCall call(Allreduce("stopped", data));
    for (int use = 0; use < 20; ++use) ASSERT_OK(MakeCall(*self.engine, call));
    self.engine->Stop();
    ASSERT_EQ(MakeCall(*self.engine, call).code(), StatusCode::kAborted);
  });
}

}  // namespace
}  // namespace ring_keras
