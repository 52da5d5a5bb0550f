// Whole collectives through the engine, for every kind, transport and size.
#include "tf_ops/runtime/engine.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"

namespace ring_keras {
namespace {

using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;
using testing::WaitFor;

// Shared memory, TCP, and both at once: two hosts, or a rank without memory to
// share.
std::vector<RankOptions> AllSetups() {
  std::vector<RankOptions> setups;
  for (int size : {1, 2, 3, 4}) {
    setups.push_back({size, "auto", 1});
    if (size > 1) setups.push_back({size, "tcp", 1});
    if (size > 2) setups.push_back({size, "auto", 2});
    if (size > 2) {
      setups.push_back({size, "auto", 1});
      setups.back().tcp_rank = size == 3 ? 0 : 2;
    }
  }
  return setups;
}

// Empty, one, fewer than ranks, uneven, one slot, several rounds or pieces.
const std::vector<int64_t> kCounts = {0, 1, 3, 1023, 40000, 700001};

float InputAt(int rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 13) % 101);
}

std::vector<float> Input(int rank, int64_t count) {
  std::vector<float> input(count);
  for (int64_t i = 0; i < count; ++i) input[i] = InputAt(rank, i);
  return input;
}

Request RequestOf(CollectiveKind kind, const std::string& name,
                  const std::vector<float>& input, Shape shape) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = DataType::kFloat32;
  request.inputs = {{input.data(), std::move(shape)}};
  return request;
}

// Lets the engine put its output into `output`.
void AllocateInto(std::vector<float>* output, Shape* shape, Request* request) {
  request->allocate_output = [=](const Shape& given) -> StatusOr<void*> {
    *shape = given;
    output->assign(ElementCount(given), -1.0f);
    return static_cast<void*>(output->data());
  };
}

RING_TEST(AllreduceSumsEveryCount) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCounts) {
        const std::vector<float> input = Input(self.rank, count);
        std::vector<float> output(count, -1.0f);
        Request request =
            RequestOf(CollectiveKind::kAllreduce, "sum", input, {count});
        request.outputs = {output.data()};
        ASSERT_OK(self.engine->Run(std::move(request)));
        for (int64_t i = 0; i < count; ++i) {
          float expected = 0;
          for (int rank = 0; rank < self.size; ++rank) {
            expected += InputAt(rank, i);
          }
          ASSERT_EQ(output[i], expected) << "at " << i << " of " << count;
        }
      }
    });
  }
}

RING_TEST(AllreduceInPlaceScalesAndAverages) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCounts) {
        std::vector<float> data = Input(self.rank, count);
        Request request =
            RequestOf(CollectiveKind::kAllreduce, "mean", data, {count});
        request.reduce_op = ReduceOp::kAverage;
        request.prescale = 2.0;
        request.postscale = 0.5;
        request.outputs = {data.data()};
        ASSERT_OK(self.engine->Run(std::move(request)));
        for (int64_t i = 0; i < count; ++i) {
          double sum = 0;
          for (int rank = 0; rank < self.size; ++rank) sum += InputAt(rank, i);
          ASSERT_TRUE(std::abs(data[i] - sum / self.size) <= 1e-4);
        }
      }
    });
  }
}

RING_TEST(GroupedAllreduceFusesTensors) {
  const std::vector<int64_t> counts = {5, 0, 33000, 1, 90001, 17};
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [&](Rank& self) {
      std::vector<std::vector<float>> tensors;
      Request request;
      request.kind = CollectiveKind::kAllreduce;
      request.name = "group";
      request.dtype = DataType::kFloat32;
      for (int64_t count : counts) {
        tensors.push_back(Input(self.rank, count));
        request.inputs.push_back({tensors.back().data(), {count}});
        request.outputs.push_back(tensors.back().data());
      }
      ASSERT_OK(self.engine->Run(std::move(request)));
      for (const std::vector<float>& tensor : tensors) {
        for (size_t i = 0; i < tensor.size(); ++i) {
          float expected = 0;
          for (int rank = 0; rank < self.size; ++rank) {
            expected += InputAt(rank, i);
          }
          ASSERT_EQ(tensor[i], expected);
        }
      }
    });
  }
}

RING_TEST(AllgatherTakesUnevenRows) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t base : {0, 1, 50000}) {
        // Rank 0 has none in the first case.
        const auto rows_of = [&](int rank) { return base * (rank + 1) + rank; };
        const int64_t rows = rows_of(self.rank);
        const std::vector<float> input = Input(self.rank, rows * 2);
        std::vector<float> output;
        Shape shape;
        Request request =
            RequestOf(CollectiveKind::kAllgather, "gather", input, {rows, 2});
        AllocateInto(&output, &shape, &request);
        ASSERT_OK(self.engine->Run(std::move(request)));
        size_t at = 0;
        for (int rank = 0; rank < self.size; ++rank) {
          for (int64_t i = 0; i < rows_of(rank) * 2; ++i) {
            ASSERT_EQ(output[at++], InputAt(rank, i));
          }
        }
        ASSERT_EQ(at, output.size());
        ASSERT_EQ(shape.size(), size_t{2});
      }
    });
  }
}

RING_TEST(BroadcastReachesEveryRank) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCounts) {
        for (int root = 0; root < self.size; ++root) {
          std::vector<float> data = Input(self.rank, count);
          Request request =
              RequestOf(CollectiveKind::kBroadcast, "bcast", data, {count});
          request.root = root;
          request.outputs = {data.data()};
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(data[i], InputAt(root, i));
          }
        }
      }
    });
  }
}

// The last rank sends two tensors, the others one each, the first one none; of
// lengths that differ by rounds. In channels, too.
RING_TEST(EachTensorOfABroadcastMayHaveARootOfItsOwn) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : {1, 1000, 300001}) {
        const int last = self.size - 1;
        std::vector<int64_t> roots = {last};
        for (int root = 1; root < self.size; ++root) roots.push_back(root);
        for (int use = 0; use < 4; ++use) {
          std::vector<std::vector<float>> data;
          Request request;
          request.kind = CollectiveKind::kBroadcast;
          request.name = StrCat("roots of ", count);
          request.dtype = DataType::kFloat32;
          request.roots = roots;
          for (size_t i = 0; i < roots.size(); ++i) {
            data.push_back(Input(self.rank + use, count / (1 + roots[i])));
          }
          for (std::vector<float>& tensor : data) {
            request.inputs.push_back(
                {tensor.data(), {static_cast<int64_t>(tensor.size())}});
            request.outputs.push_back(tensor.data());
          }
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (size_t i = 0; i < roots.size(); ++i) {
            for (size_t at = 0; at < data[i].size(); ++at) {
              ASSERT_EQ(data[i][at], InputAt(roots[i] + use, at));
            }
          }
        }
      }
    });
  }
}

RING_TEST(ReduceScatterGivesTheFirstRanksOneRowMore) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t rows : {0, 1, 7, 130001}) {
        const std::vector<float> input = Input(self.rank, rows * 3);
        std::vector<float> output;
        Shape shape;
        Request request = RequestOf(CollectiveKind::kReduceScatter, "scatter",
                                    input, {rows, 3});
        AllocateInto(&output, &shape, &request);
        ASSERT_OK(self.engine->Run(std::move(request)));
        const int64_t base = rows / self.size;
        const int64_t extra = rows % self.size;
        const int64_t begin =
            self.rank * base + std::min<int64_t>(self.rank, extra);
        ASSERT_EQ(shape[0], base + (self.rank < extra ? 1 : 0));
        for (size_t i = 0; i < output.size(); ++i) {
          float expected = 0;
          for (int rank = 0; rank < self.size; ++rank) {
            expected += InputAt(rank, begin * 3 + i);
          }
          ASSERT_EQ(output[i], expected);
        }
      }
    });
  }
}

// Of several tensors; the first rank gets nothing, and parts begin and end
// within tensors. In channels, too.
RING_TEST(ReduceScatterFollowsTheSplits) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t unit : {0, 1, 1000, 130001}) {
        std::vector<int64_t> splits(self.size, 0);
        int64_t count = 0;
        int64_t before = 0;
        for (int rank = 0; rank < self.size; ++rank) {
          splits[rank] = unit * rank;
          if (rank < self.rank) before += splits[rank];
          count += splits[rank];
        }
        for (int use = 0; use < 3; ++use) {
          const std::vector<float> data = Input(self.rank + use, count);
          const int64_t cut = count / 3;
          std::vector<float> part;
          Shape shape;
          Request request;
          request.kind = CollectiveKind::kReduceScatter;
          request.name = StrCat("parts of ", unit);
          request.dtype = DataType::kFloat32;
          request.splits = splits;
          request.inputs = {{data.data(), {cut}},
                            {data.data() + cut, {count - cut}}};
          AllocateInto(&part, &shape, &request);
          ASSERT_OK(self.engine->Run(std::move(request)));
          ASSERT_EQ(shape.size(), size_t{1});
          ASSERT_EQ(shape[0], splits[self.rank]);
          for (size_t i = 0; i < part.size(); ++i) {
            float expected = 0;
            for (int rank = 0; rank < self.size; ++rank) {
              expected += InputAt(rank + use, before + i);
            }
            ASSERT_EQ(part[i], expected);
          }
        }
      }
    });
  }
}

RING_TEST(AlltoallFollowsTheSplits) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t unit : {0, 1, 20000}) {
        // Rank r sends unit * (r + to) rows to each rank.
        const auto rows_to = [&](int from, int to) {
          return unit * (from + to);
        };
        std::vector<int64_t> splits;
        int64_t rows = 0;
        for (int to = 0; to < self.size; ++to) {
          splits.push_back(rows_to(self.rank, to));
          rows += splits.back();
        }
        const std::vector<float> input = Input(self.rank, rows);
        std::vector<float> output;
        Shape shape;
        std::vector<int64_t> received;
        Request request =
            RequestOf(CollectiveKind::kAlltoall, "all", input, {rows});
        request.splits = splits;
        request.received_splits = &received;
        AllocateInto(&output, &shape, &request);
        ASSERT_OK(self.engine->Run(std::move(request)));
        size_t at = 0;
        for (int from = 0; from < self.size; ++from) {
          ASSERT_EQ(received[from], rows_to(from, self.rank));
          int64_t begin = 0;
          for (int to = 0; to < self.rank; ++to) begin += rows_to(from, to);
          for (int64_t i = 0; i < received[from]; ++i) {
            ASSERT_EQ(output[at++], InputAt(from, begin + i));
          }
        }
        ASSERT_EQ(at, output.size());
      }
    });
  }
}

// Requests in a different order on every rank all complete.
RING_TEST(OrderMayDifferBetweenRanks) {
  for (const RankOptions& setup : AllSetups()) {
    RunRanks(setup, [](Rank& self) {
      constexpr int kRequests = 12;
      constexpr int64_t kCount = 50000;
      std::vector<std::vector<float>> tensors;
      for (int i = 0; i < kRequests; ++i) {
        tensors.push_back(std::vector<float>(kCount, self.rank + i));
      }
      std::atomic<int> ended{0};
      std::atomic<int> failed{0};
      for (int i = 0; i < kRequests; ++i) {
        const int which = (i * 5 + self.rank * 7) % kRequests;
        Request request =
            RequestOf(CollectiveKind::kAllreduce, StrCat("t", which),
                      tensors[which], {kCount});
        request.outputs = {tensors[which].data()};
        self.engine->Submit(std::move(request), [&](const Status& status) {
          failed += status.ok() ? 0 : 1;
          ++ended;
        });
      }
      Request barrier;
      barrier.name = "end";
      WaitFor([&] { return ended == kRequests; });
      ASSERT_EQ(ended.load(), kRequests);
      ASSERT_EQ(failed.load(), 0);
      ASSERT_OK(self.engine->Run(std::move(barrier)));
      for (int i = 0; i < kRequests; ++i) {
        const float expected = self.size * i + self.size * (self.size - 1) / 2;
        ASSERT_EQ(tensors[i].front(), expected);
        ASSERT_EQ(tensors[i].back(), expected);
      }
    });
  }
}

RING_TEST(MismatchIsTheSameErrorOnEveryRankAndNothingBreaks) {
  for (const RankOptions& setup : AllSetups()) {
    if (setup.size == 1) continue;
    RunRanks(setup, [](Rank& self) {
      const int odd = self.size - 1;
      const int64_t count = self.rank == odd ? 6 : 5;
      const std::vector<float> input = Input(self.rank, count);
      std::vector<float> output(count);
      Request request =
          RequestOf(CollectiveKind::kAllreduce, "grads", input, {count});
      request.outputs = {output.data()};
      const Status status = self.engine->Run(std::move(request));
      ASSERT_TRUE(status.code() == StatusCode::kRankMismatch);
      ASSERT_EQ(status.message(),
                StrCat("allreduce 'grads': shape differs across ranks: rank 0 "
                       "has [5], rank ",
                       odd,
                       " has [6]. Build the same model, with the same batch "
                       "shape, on every rank."));
      Request good = RequestOf(CollectiveKind::kAllreduce, "grads", input, {2});
      good.outputs = {output.data()};
      ASSERT_OK(self.engine->Run(std::move(good)));
    });
  }
}

RING_TEST(BadInputOnOneRankIsAnErrorOnAll) {
  for (const RankOptions& setup : AllSetups()) {
    if (setup.size == 1) continue;
    RunRanks(setup, [](Rank& self) {
      const std::vector<float> input = Input(self.rank, 4);
      std::vector<float> output;
      Shape shape;
      Request request = RequestOf(CollectiveKind::kAlltoall, "a2a", input, {4});
      request.splits.assign(self.size, 0);
      request.splits[0] = self.rank == 1 ? 3 : 4;
      AllocateInto(&output, &shape, &request);
      const Status status = self.engine->Run(std::move(request));
      ASSERT_TRUE(status.code() == (self.rank == 1
                                        ? StatusCode::kInvalidArgument
                                        : StatusCode::kRankMismatch));
      Request barrier;
      barrier.name = "after";
      ASSERT_OK(self.engine->Run(std::move(barrier)));
    });
  }
}

RING_TEST(SubsetsOfRanksWorkSideBySide) {
  RankOptions setup;
  setup.size = 4;
  RunRanks(setup, [](Rank& self) {
    const bool even = self.rank % 2 == 0;
    self.engine->AddCommunicator(1, {0, 2});
    self.engine->AddCommunicator(2, {1, 3});
    for (int round = 0; round < 20; ++round) {
      std::vector<float> data(100, self.rank);
      Request request =
          RequestOf(CollectiveKind::kAllreduce, "set", data, {100});
      request.communicator_id = even ? 1 : 2;
      request.outputs = {data.data()};
      ASSERT_OK(self.engine->Run(std::move(request)));
      ASSERT_EQ(data[99], even ? 2.0f : 4.0f);
    }
    Request foreign;
    foreign.communicator_id = even ? 2 : 1;
    ASSERT_TRUE(self.engine->Run(std::move(foreign)).code() ==
                StatusCode::kInvalidArgument);
  });
}

RING_TEST(MissingRankIsADeadlineErrorThatNamesIt) {
  for (const char* transport : {"auto", "tcp"}) {
    RankOptions setup;
    setup.size = 3;
    setup.transport = transport;
    setup.collective_timeout_s = 0.3;
    std::atomic<int> failed{0};
    RunRanks(setup, [&](Rank& self) {
      if (self.rank != 1) {
        Request request;
        request.name = "lonely";
        const Status status = self.engine->Run(std::move(request));
        ASSERT_TRUE(status.code() == StatusCode::kDeadlineExceeded);
        ASSERT_TRUE(status.message().find("rank 1 of 3") != std::string::npos)
            << status.message();
        ++failed;
      } else {
        WaitFor([&] { return failed == 2; });
      }
    });
    ASSERT_EQ(failed.load(), 2);
  }
}

RING_TEST(LeavingIsToldToThoseWhoWait) {
  for (const char* transport : {"auto", "tcp"}) {
    RankOptions setup;
    setup.size = 2;
    setup.transport = transport;
    RunRanks(setup, [&](Rank& self) {
      // What both did is complete on both, although one leaves at once.
      std::vector<float> data(300000, 1.0f);
      Request both = RequestOf(CollectiveKind::kAllreduce, "both", data,
                               {static_cast<int64_t>(data.size())});
      both.outputs = {data.data()};
      ASSERT_OK(self.engine->Run(std::move(both)));
      ASSERT_EQ(data.back(), 2.0f);
      if (self.rank == 1) return;
      Request alone;
      alone.name = "alone";
      const Status status = self.engine->Run(std::move(alone));
      ASSERT_TRUE(status.code() == StatusCode::kPeerLost);
      ASSERT_TRUE(status.message().find("rank 1 (host") != std::string::npos)
          << status.message();
      ASSERT_TRUE(status.message().find("barrier 'alone'") != std::string::npos)
          << status.message();
    });
  }
}

RING_TEST(StopEndsWhatIsPending) {
  RankOptions setup;
  setup.size = 2;
  RunRanks(setup, [&](Rank& self) {
    if (self.rank == 1) return;
    Request alone;
    alone.name = "alone";
    std::atomic<bool> ended{false};
    self.engine->Submit(std::move(alone), [&](const Status& status) {
      EXPECT_TRUE(!status.ok());
      ended = true;
    });
    self.engine->Stop();
    ASSERT_TRUE(WaitFor([&] { return ended.load(); }));
  });
}

// Many threads of one rank at the same time.
RING_TEST(ThreadsShareAnEngine) {
  RankOptions setup;
  setup.size = 2;
  RunRanks(setup, [&](Rank& self) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 50; ++round) {
          std::vector<float> data(1000, 1.0f);
          Request request = RequestOf(CollectiveKind::kAllreduce,
                                      StrCat("thread", thread), data, {1000});
          request.outputs = {data.data()};
          ASSERT_OK(self.engine->Run(std::move(request)));
          ASSERT_EQ(data[999], 2.0f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace ring_keras
