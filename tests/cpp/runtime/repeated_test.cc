// Collectives whose name is used again: they meet in a channel, without
// announcements, and everything must be as it was with them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/collectives/collective.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {
namespace {

using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

// More floats than the slots of a window hold together.
constexpr int64_t kMoreThanAWindow = 300000;
constexpr size_t kSlotOfTwoRanks = size_t{128} << 10;
static_assert(kMoreThanAWindow * sizeof(float) > WindowBytes(kSlotOfTwoRanks));

std::vector<RankOptions> SetupsToRepeat() {
  std::vector<RankOptions> setups;
  for (int size : {1, 2, 3, 4}) {
    setups.push_back({size, "auto", 1});
    if (size > 1) setups.push_back({size, "tcp", 1});
  }
  for (int size : {3, 4, 5}) setups.push_back({size, "auto", 2});
  // Connections are made when they are needed.
  setups.push_back({7, "tcp", 1});
  setups.back().max_direct_peers = 2;
  return setups;
}

Request AllreduceOf(const std::string& name, float* data, int64_t count,
                    ReduceOp op = ReduceOp::kSum) {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = name;
  request.dtype = DataType::kFloat32;
  request.reduce_op = op;
  request.inputs = {{data, {count}}};
  request.outputs = {data};
  return request;
}

// Inputs repeat after as many elements.
constexpr size_t kPeriod = 97;

float InputOfUse(int rank, int use, int64_t i) {
  return static_cast<float>((i * 3 + rank * 7 + use) % int64_t{kPeriod});
}

float SumAt(int size, int use, int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += InputOfUse(rank, use, i);
  return sum;
}

void Fill(std::vector<float>* data, int rank, int use) {
  for (size_t i = 0; i < data->size(); ++i) {
    (*data)[i] = i < kPeriod ? InputOfUse(rank, use, i) : (*data)[i - kPeriod];
  }
}

void ExpectSum(const std::vector<float>& data, int size, int use) {
  std::array<float, kPeriod> sums;
  for (size_t i = 0; i < kPeriod; ++i) sums[i] = SumAt(size, use, i);
  for (size_t i = 0; i < data.size(); ++i) {
    const float sum = sums[i % kPeriod];
    if (data[i] == sum) continue;
    ASSERT_EQ(data[i], sum) << "at " << i << " in use " << use;
  }
}

// One slot, several rounds, nothing, more than the channel has room for, less.
RING_TEST(AnyCountFollowsAnyOther) {
  const std::vector<int64_t> counts = {1,    1,  1,     2,      40000, 3,
                                       0,    70, 70000, 600001, 5,     5,
                                       4096, 0,  32768, 1,      32769, 200001};
  for (const RankOptions& setup : SetupsToRepeat()) {
    RunRanks(setup, [&](Rank& self) {
      int use = 0;
      for (int64_t count : counts) {
        std::vector<float> data(count);
        Fill(&data, self.rank, use);
        ASSERT_OK(self.engine->Run(AllreduceOf("again", data.data(), count)));
        ExpectSum(data, self.size, use++);
      }
    });
  }
}

// A rank may be in the next use while another still reads what this one packed.
RING_TEST(RanksOfDifferentSpeedStayInStep) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 100; ++use) {
        // Of one round, or of more rounds than there are slots.
        std::vector<float> data(use % 3 == 0 ? kMoreThanAWindow : 33);
        Fill(&data, self.rank, use);
        if (use % self.size == self.rank) sched_yield();
        ASSERT_OK(
            self.engine->Run(AllreduceOf("step", data.data(), data.size())));
        ExpectSum(data, self.size, use);
      }
    });
  }
}

RING_TEST(UsesUnderWayTogetherKeepTheirOrder) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    RunRanks(setup, [](Rank& self) {
      constexpr int kUses = 12;
      for (double drive_for_s : {0.0, 1e-3}) {
        std::vector<std::vector<float>> data(kUses, std::vector<float>(20000));
        std::atomic<int> ended{0};
        for (int use = 0; use < kUses; ++use) {
          Fill(&data[use], self.rank, use);
          self.engine->Submit(
              AllreduceOf("many", data[use].data(), 20000),
              [&](const Status& status) {
                EXPECT_OK(status);
                ++ended;
              },
              drive_for_s);
        }
        testing::WaitFor([&] { return ended == kUses; });
        ASSERT_EQ(ended.load(), kUses);
        for (int use = 0; use < kUses; ++use) {
          ExpectSum(data[use], self.size, use);
        }
      }
    });
  }
}

RING_TEST(OtherKindsRepeat) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 8; ++use) {
        Request barrier;
        barrier.name = "barrier";
        ASSERT_OK(self.engine->Run(std::move(barrier)));

        std::vector<float> data(use % 2 == 0 ? 50 : 90000);
        Fill(&data, self.rank, use);
        Request broadcast = AllreduceOf("broadcast", data.data(), data.size());
        broadcast.kind = CollectiveKind::kBroadcast;
        broadcast.root = use % self.size;
        ASSERT_OK(self.engine->Run(std::move(broadcast)));
        for (size_t i = 0; i < data.size(); ++i) {
          ASSERT_EQ(data[i], InputOfUse(use % self.size, use, i));
        }

        const int64_t rows = use % 2 == 0 ? 7 : 60000;
        std::vector<float> input(rows);
        Fill(&input, self.rank, use);
        std::vector<float> part;
        Request scatter = AllreduceOf("scatter", input.data(), rows);
        scatter.kind = CollectiveKind::kReduceScatter;
        scatter.outputs.clear();
        scatter.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
          part.resize(ElementCount(shape));
          return static_cast<void*>(part.data());
        };
        ASSERT_OK(self.engine->Run(std::move(scatter)));
        const int64_t begin = rows / self.size * self.rank +
                              std::min<int64_t>(rows % self.size, self.rank);
        for (size_t i = 0; i < part.size(); ++i) {
          ASSERT_EQ(part[i], SumAt(self.size, use, begin + i));
        }
      }
    });
  }
}

// Of 40,000 rows in all, or of no more than ranks have of each.
int64_t RowsOf(int rank, int use) {
  if ((rank + use) % 3 == 0) return 0;
  return use % 4 == 2 ? 40000 : (rank * 5 + use * 3) % 11;
}

Request AllgatherOf(const std::string& name, const std::vector<float>& rows,
                    Shape shape, std::vector<float>* all) {
  Request request;
  request.kind = CollectiveKind::kAllgather;
  request.name = name;
  request.dtype = DataType::kFloat32;
  request.inputs = {{rows.data(), std::move(shape)}};
  request.allocate_output = [all](const Shape& of_all) -> StatusOr<void*> {
    all->resize(ElementCount(of_all));
    return static_cast<void*>(all->data());
  };
  return request;
}

// As the slices of gradients: each time each rank has another number of them.
RING_TEST(AllgathersOfAnyRowsRepeat) {
  std::vector<RankOptions> setups = SetupsToRepeat();
  // By way of others, in one way and the other.
  for (int size : {2, 5, 8, 13}) {
    for (size_t halving_max_bytes : {size_t{0}, size_t{1} << 30}) {
      setups.push_back({size, "tcp", 1});
      setups.back().max_direct_peers = 0;
      setups.back().tuning.halving_max_bytes = halving_max_bytes;
    }
  }
  for (const RankOptions& setup : setups) {
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 9; ++use) {
        const int64_t rows = RowsOf(self.rank, use);
        const std::vector<float> own(rows * 2, InputOfUse(self.rank, use, 0));
        std::vector<float> all;
        ASSERT_OK(
            self.engine->Run(AllgatherOf("slices", own, {rows, 2}, &all)));
        std::vector<float> expected;
        for (int rank = 0; rank < self.size; ++rank) {
          expected.insert(expected.end(), RowsOf(rank, use) * 2,
                          InputOfUse(rank, use, 0));
        }
        ASSERT_TRUE(all == expected) << "rank " << self.rank << ", use " << use;
      }
    });
  }
}

// In a channel as in an announcement: the rows are each rank's, what one has in
// them is not, unless a rank wants as many of all.
RING_TEST(WhatAllgathersDisagreeAboutIsNamedOnEveryRank) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    if (setup.size == 1) continue;
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 13; ++use) {
        const bool odd_one = self.rank == self.size - 1;
        const bool columns_differ = use % 4 == 3;
        const bool one_wants_even = use % 4 == 1;
        const int64_t rows = odd_one ? 3 : 2;
        const int64_t columns = columns_differ && odd_one ? 5 : 4;
        const std::vector<float> own(rows * columns, 1.0f);
        std::vector<float> all;
        Request request = AllgatherOf("columns", own, {rows, columns}, &all);
        request.even_rows = one_wants_even && odd_one;
        const Status status = self.engine->Run(std::move(request));
        if (!columns_differ && !one_wants_even) {
          ASSERT_OK(status);
          ASSERT_EQ(all.size(), 4 * (2 * size_t(self.size) + 1));
          continue;
        }
        ASSERT_EQ(status.code(), StatusCode::kRankMismatch);
        const char* named = columns_differ ? "[3,5]" : "[3,4]";
        EXPECT_TRUE(status.message().find(named) != std::string::npos)
            << status.message();
      }
    });
  }
}

RING_TEST(ADisagreementIsNamedOnEveryRankAndThenOver) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    if (setup.size == 1) continue;
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 12; ++use) {
        const bool differ = use % 4 == 3;
        const bool odd_one = self.rank == self.size - 1;
        std::vector<float> data(differ && odd_one ? 50000 : 100);
        Fill(&data, self.rank, use);
        const Status status =
            self.engine->Run(AllreduceOf("shape", data.data(), data.size()));
        if (!differ) {
          ASSERT_OK(status);
          ExpectSum(data, self.size, use);
          continue;
        }
        ASSERT_EQ(status.code(), StatusCode::kRankMismatch);
        EXPECT_TRUE(status.message().find("[50000]") != std::string::npos)
            << status.message();
      }
    });
  }
}

RING_TEST(ARankThatCannotTakePartSaysSo) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    if (setup.size == 1) continue;
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 8; ++use) {
        std::vector<float> data(10);
        Fill(&data, self.rank, use);
        Request request =
            AllreduceOf("weighed", data.data(), 10, ReduceOp::kAverage);
        const bool wrong = use == 5 && self.rank == 0;
        if (wrong) request.weight = -1;
        const Status status = self.engine->Run(std::move(request));
        if (use != 5) {
          ASSERT_OK(status);
        } else {
          ASSERT_EQ(status.code(), wrong ? StatusCode::kInvalidArgument
                                         : StatusCode::kRankMismatch);
          EXPECT_TRUE(status.message().find("weight is -1") !=
                      std::string::npos)
              << status.message();
        }
      }
    });
  }
}

// Weights that are equal change nothing, not even a bit.
RING_TEST(WeightsMakeAWeightedMean) {
  for (const RankOptions& setup : SetupsToRepeat()) {
    RunRanks(setup, [](Rank& self) {
      for (int use = 0; use < 9; ++use) {
        const auto weight_of = [&](int rank) {
          return use % 3 == 0   ? 5.0
                 : use % 3 == 1 ? rank + 0.5
                                : rank % 2 * 1.0;
        };
        for (int64_t count : {int64_t{9}, int64_t{100001}}) {
          std::vector<float> data(count);
          Fill(&data, self.rank, use);
          Request request = AllreduceOf(StrCat("mean", count), data.data(),
                                        count, ReduceOp::kAverage);
          request.weight = weight_of(self.rank);
          ASSERT_OK(self.engine->Run(std::move(request)));
          double total = 0;
          for (int rank = 0; rank < self.size; ++rank) total += weight_of(rank);
          for (int64_t i = 0; i < count; ++i) {
            double sum = 0;
            for (int rank = 0; rank < self.size; ++rank) {
              sum += weight_of(rank) * InputOfUse(rank, use, i);
            }
            const double mean = total == 0 ? 0 : sum / total;
            if (use % 3 == 0) {
              ASSERT_EQ(data[i], SumAt(self.size, use, i) *
                                     static_cast<float>(1.0 / self.size));
            } else {
              ASSERT_TRUE(std::abs(data[i] - mean) < 1e-4)
                  << data[i] << " for " << mean;
            }
          }
        }
      }
    });
  }
}

RING_TEST(SharedBuffersAreReducedInPlace) {
  for (int size : {2, 3, 4}) {
    RunRanks({size, "auto", 1}, [](Rank& self) {
      BufferAllocator& buffers = self.engine->mesh().buffers();
      for (int64_t count : {1, 15, 16, 17, 5000, 400003}) {
        auto input = buffers.Allocate(count * sizeof(float));
        auto output = buffers.Allocate(count * sizeof(float));
        ASSERT_OK(input.status());
        ASSERT_OK(output.status());
        for (int use = 0; use < 6; ++use) {
          std::vector<float> own(count);
          Fill(&own, self.rank, use);
          // In place, into another buffer, and where one rank has private
          // memory.
          float* from = static_cast<float*>(input.value().get());
          const bool is_private = use % 3 == 2 && self.rank == 1;
          if (is_private) from = own.data();
          std::copy(own.begin(), own.end(), from);
          float* to =
              use % 3 == 1 ? static_cast<float*>(output.value().get()) : from;
          Request request = AllreduceOf(StrCat("shared", count), from, count);
          request.outputs = {to};
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(to[i], SumAt(self.size, use, i));
          }
          if (to != from) {
            for (int64_t i = 0; i < count; ++i) {
              ASSERT_EQ(from[i], InputOfUse(self.rank, use, i));
            }
          }
        }
      }
    });
  }
}

// Names of large tensors, more than there is room for at a time; all of them
// are used again when the first have long been let go. In shared buffers, whose
// windows stay empty, so that the test needs little memory.
RING_TEST(AnyNumberOfNamesTakeTurns) {
  constexpr int kNames = 4300;
  constexpr int64_t kCount = int64_t{512} << 8;  // 512 KiB.
  RunRanks({3, "auto", 1}, [](Rank& self) {
    auto buffer =
        self.engine->mesh().buffers().Allocate(kCount * sizeof(float));
    ASSERT_OK(buffer.status());
    auto* data = static_cast<float*>(buffer.value().get());
    for (int use = 0; use < 6; ++use) {
      // The last uses: of some names of each age.
      for (int name = 0; name < kNames; name += use < 2 ? 1 : 97) {
        data[0] = data[kCount - 1] = static_cast<float>(name + self.rank);
        ASSERT_OK(self.engine->Run(
            AllreduceOf(StrCat("large ", name), data, kCount)));
        ASSERT_EQ(data[0], 3.0f * name + 3);
        ASSERT_EQ(data[kCount - 1], 3.0f * name + 3);
      }
    }
  });
}

}  // namespace
}  // namespace ring_keras
