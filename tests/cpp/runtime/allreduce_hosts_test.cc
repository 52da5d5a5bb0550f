// Allreduce between hosts, and between hosts of several ranks each, through the
// engine: every algorithm by the length that it is for.
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {
namespace {

using testing::Allreduce;
using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

// Ranks go to hosts in turn, so that 5 on 2 hosts are 3 and 2.
std::vector<RankOptions> SetupsOfSeveralHosts() {
  std::vector<RankOptions> setups;
  for (int size : {2, 3, 4, 5}) {
    setups.push_back({size, "tcp", 1});
    for (int hosts = 2; hosts < size; ++hosts) {
      setups.push_back({size, "auto", hosts});
    }
    if (size > 2) {
      setups.push_back({size, "auto", 1});
      setups.back().tcp_rank = 1;
    }
  }
  return setups;
}

// One for each algorithm, and lengths that nothing divides.
const std::vector<int64_t> kCountsBetweenHosts = {0,    1,    1023,
                                                  1025, 5003, 300007};

std::vector<float> Fractions(int rank, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = 1.0f / static_cast<float>(1 + i % 1009 + rank * 17);
  }
  return values;
}

// What all ranks got, one after the other.
std::vector<float> GatherAll(Rank& self, const std::vector<float>& own) {
  std::vector<float> all;
  Request request;
  request.kind = CollectiveKind::kAllgather;
  request.name = "results";
  request.dtype = DataType::kFloat32;
  request.inputs = {{own.data(), {1, static_cast<int64_t>(own.size())}}};
  request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
    all.resize(ElementCount(shape));
    return static_cast<void*>(all.data());
  };
  EXPECT_OK(self.engine->Run(std::move(request)));
  return all;
}

void ExpectSameBits(Rank& self, const std::vector<float>& own) {
  const std::vector<float> all = GatherAll(self, own);
  if (own.empty()) return;  // memcmp() takes no null.
  for (int rank = 0; rank < self.size; ++rank) {
    ASSERT_TRUE(std::memcmp(all.data() + rank * own.size(), own.data(),
                            own.size() * sizeof(float)) == 0)
        << "rank " << rank << " got other bits, of " << own.size();
  }
}

// Of all ranks' Fractions().
void ExpectMeans(Rank& self, const std::vector<float>& data) {
  for (size_t i = 0; i < data.size(); i += 97) {
    double sum = 0;
    for (int rank = 0; rank < self.size; ++rank) {
      sum += 1.0 / static_cast<double>(1 + i % 1009 + rank * 17);
    }
    ASSERT_TRUE(std::abs(data[i] - sum / self.size) < 1e-6);
  }
}

RING_TEST(AveragesAreTheSameBitsOnEveryRank) {
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsBetweenHosts) {
        std::vector<float> data = Fractions(self.rank, count);
        Request request = Allreduce("mean", data);
        request.reduce_op = ReduceOp::kAverage;
        ASSERT_OK(self.engine->Run(std::move(request)));
        ExpectMeans(self, data);
        ExpectSameBits(self, data);
      }
    });
  }
}

// Each pattern in turn takes data of all lengths.
std::vector<Tuning> TuningsOfEveryPattern() {
  constexpr size_t kAll = size_t{1} << 40;
  Tuning doubling, parts, halving, trees, ring;
  doubling.recursive_doubling_max_bytes = kAll;
  parts.recursive_doubling_max_bytes = 0;
  parts.parts_max_bytes = kAll;
  halving = parts;
  halving.parts_max_bytes = 0;
  halving.halving_max_bytes = kAll;
  trees = halving;
  trees.halving_max_bytes = 0;
  trees.trees_max_bytes = kAll;
  ring = trees;
  ring.trees_max_bytes = 0;
  return {doubling, parts, halving, trees, ring};
}

// Two lanes over three hosts and over five, one of which has a rank more; with
// more data than go by in a round. Of each element every rank adds another
// power of two, so that what is added twice, or not at all, shows.
RING_TEST(EveryPatternIsExactInTheLanesOfSeveralHosts) {
  for (const Tuning& tuning : TuningsOfEveryPattern()) {
    for (const auto& [size, hosts] : {std::pair(6, 3), std::pair(11, 5)}) {
      RankOptions setup{size, "auto", hosts};
      setup.tuning = tuning;
      RunRanks(setup, [](Rank& self) {
        for (int64_t count : {2048, 5003, 300007, 1000003}) {
          std::vector<float> data(count);
          for (int64_t i = 0; i < count; ++i) {
            data[i] = static_cast<float>((1 << self.rank) + i % 7);
          }
          ASSERT_OK(self.engine->Run(Allreduce(StrCat("of ", count), data)));
          for (int64_t i = 0; i < count; ++i) {
            const int64_t sum = (1 << self.size) - 1 + self.size * (i % 7);
            ASSERT_EQ(data[i], static_cast<float>(sum)) << i << " of " << count;
          }
        }
      });
    }
  }
}

// Rows that the ranks do not divide; and fewer rows than there are ranks.
RING_TEST(EveryPatternScattersExactlyInTheLanesOfSeveralHosts) {
  for (const Tuning& tuning : TuningsOfEveryPattern()) {
    for (const auto& [size, hosts] :
         {std::pair(4, 4), std::pair(6, 3), std::pair(11, 5)}) {
      RankOptions setup{size, hosts == size ? "tcp" : "auto", hosts};
      setup.tuning = tuning;
      RunRanks(setup, [](Rank& self) {
        for (const auto& [rows, columns] :
             {std::pair(3, 100003), std::pair(1009, 3),
              std::pair(1000003, 1)}) {
          std::vector<float> data(rows * columns);
          for (size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<float>((1 << self.rank) + i % 7);
          }
          std::vector<float> part;
          Request request = Allreduce(StrCat("of ", rows), data);
          request.kind = CollectiveKind::kReduceScatter;
          request.inputs[0].shape = {rows, columns};
          request.outputs = {};
          request.allocate_output = [&](const Shape& shape) {
            part.resize(ElementCount(shape));
            return StatusOr<void*>(part.data());
          };
          ASSERT_OK(self.engine->Run(std::move(request)));
          const size_t first =
              columns * (rows / self.size * self.rank +
                         std::min(rows % self.size, self.rank));
          for (size_t i = 0; i < part.size(); ++i) {
            const int64_t sum =
                (1 << self.size) - 1 + self.size * ((first + i) % 7);
            ASSERT_EQ(part[i], static_cast<float>(sum))
                << i << " of " << part.size() << " on rank " << self.rank;
          }
        }
      });
    }
  }
}

RING_TEST(EveryPatternGivesTheSameBitsInTheLanesOfSeveralHosts) {
  for (const Tuning& tuning : TuningsOfEveryPattern()) {
    RankOptions setup{6, "auto", 3};
    setup.tuning = tuning;
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : {5003, 300007}) {
        std::vector<float> first;
        for (int turn = 0; turn < 3; ++turn) {
          std::vector<float> data = Fractions(self.rank, count);
          Request request = Allreduce("mean", data);
          request.reduce_op = ReduceOp::kAverage;
          ASSERT_OK(self.engine->Run(std::move(request)));
          ExpectMeans(self, data);
          ExpectSameBits(self, data);
          if (turn == 0) first = data;
          ASSERT_TRUE(data == first) << "turn " << turn;
        }
      }
    });
  }
}

// More rounds than a window has slots.
RING_TEST(SlotsAreUsedAgain) {
  RunRanks({5, "auto", 2}, [](Rank& self) {
    std::vector<float> data(2000003, static_cast<float>(self.rank));
    ASSERT_OK(self.engine->Run(Allreduce("long", data)));
    for (float value : data) ASSERT_EQ(value, 10.0f);
  });
}

// Rounded on the way there, summed in float32, rounded on the way back.
RING_TEST(NarrowDataTravelAndAreTheSameBitsOnEveryRank) {
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [](Rank& self) {
      for (DataType wire : {DataType::kBfloat16, DataType::kFloat16}) {
        const double step = wire == DataType::kBfloat16 ? 0x1p-8 : 0x1p-11;
        for (int64_t count : kCountsBetweenHosts) {
          std::vector<float> data = Fractions(self.rank, count);
          Request request = Allreduce("narrow", data);
          request.reduce_op = ReduceOp::kAverage;
          request.wire_dtype = wire;
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (int64_t i = 0; i < count; i += 97) {
            double sum = 0;
            for (int rank = 0; rank < self.size; ++rank) {
              sum += 1.0 / static_cast<double>(1 + i % 1009 + rank * 17);
            }
            const double mean = sum / self.size;
            ASSERT_TRUE(std::abs(data[i] - mean) <= 2.01 * step * mean)
                << "got " << data[i] << " for " << mean;
          }
          ExpectSameBits(self, data);
        }
      }
    });
  }
}

// Nothing that 16 bits hold is lost.
RING_TEST(NarrowDataAreExactWhereTheyFit) {
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsBetweenHosts) {
        std::vector<float> data(count, static_cast<float>(self.rank + 1));
        Request request = Allreduce("exact", data);
        request.wire_dtype = DataType::kBfloat16;
        request.prescale = 4.0;
        request.postscale = 1.0 / 3;
        ASSERT_OK(self.engine->Run(std::move(request)));
        const float expected = static_cast<float>(
            4 * self.size * (self.size + 1) / 2 * static_cast<float>(1.0 / 3));
        for (float value : data) ASSERT_EQ(value, expected);
      }
    });
  }
}

RING_TEST(WeightsCountBetweenHosts) {
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [](Rank& self) {
      for (bool narrow : {false, true}) {
        for (int64_t count : kCountsBetweenHosts) {
          std::vector<float> data(count, static_cast<float>(self.rank));
          Request request = Allreduce("weighted", data);
          request.reduce_op = ReduceOp::kAverage;
          request.weight = self.rank;
          if (narrow) request.wire_dtype = DataType::kBfloat16;
          ASSERT_OK(self.engine->Run(std::move(request)));
          double sum = 0, total = 0;
          for (int rank = 0; rank < self.size; ++rank) {
            sum += rank * rank;
            total += rank;
          }
          const double bound = narrow ? 0.03 : 1e-5;
          for (float value : data) {
            ASSERT_TRUE(std::abs(value - sum / total) < bound) << value;
          }
          ExpectSameBits(self, data);
        }
      }
    });
  }
}

RING_TEST(FusedTensorsCrossHosts) {
  const std::vector<int64_t> counts = {5, 0, 33000, 1, 290001, 17};
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [&](Rank& self) {
      for (bool narrow : {false, true}) {
        std::vector<std::vector<float>> tensors;
        Request request;
        request.kind = CollectiveKind::kAllreduce;
        request.name = "group";
        request.dtype = DataType::kFloat32;
        if (narrow) request.wire_dtype = DataType::kFloat16;
        for (int64_t count : counts) {
          tensors.emplace_back(count, static_cast<float>(self.rank + 1));
          request.inputs.push_back({tensors.back().data(), {count}});
          request.outputs.push_back(tensors.back().data());
        }
        ASSERT_OK(self.engine->Run(std::move(request)));
        for (const std::vector<float>& tensor : tensors) {
          for (float value : tensor) {
            ASSERT_EQ(value, self.size * (self.size + 1) / 2.0f);
          }
        }
      }
    });
  }
}

// Many at once, in another order on every rank.
RING_TEST(HierarchicalCollectivesRunSideBySide) {
  RunRanks({4, "auto", 2}, [](Rank& self) {
    constexpr int kRequests = 8;
    std::vector<std::vector<float>> data(kRequests);
    std::atomic<int> ended{0};
    for (int i = 0; i < kRequests; ++i) {
      const int which = (i * 3 + self.rank) % kRequests;
      data[which].assign(300001 * (which % 3 + 1), which + self.rank);
      self.engine->Submit(Allreduce(StrCat("t", which), data[which]),
                          [&](const Status& status) {
                            EXPECT_OK(status);
                            ++ended;
                          });
    }
    testing::WaitFor([&] { return ended == kRequests; });
    ASSERT_EQ(ended.load(), kRequests);
    for (int i = 0; i < kRequests; ++i) {
      for (float value : data[i]) ASSERT_EQ(value, 4.0f * i + 6);
    }
    // The engines leave together.
    Request barrier;
    barrier.name = "end";
    ASSERT_OK(self.engine->Run(std::move(barrier)));
  });
}

// With data in the announcements, too, a disagreement breaks nothing.
RING_TEST(CompressionMustBeTheSameOnEveryRank) {
  for (const RankOptions& setup : SetupsOfSeveralHosts()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsBetweenHosts) {
        std::vector<float> data(count, 1.0f);
        Request request = Allreduce("grads", data);
        if (self.rank == 1) request.wire_dtype = DataType::kBfloat16;
        const Status status = self.engine->Run(std::move(request));
        ASSERT_TRUE(status.code() == StatusCode::kRankMismatch);
        ASSERT_EQ(status.message(),
                  "allreduce 'grads': compression differs across ranks: rank 0 "
                  "has none, rank 1 has bfloat16. Use one compression on every "
                  "rank.");
        Request again = Allreduce("after", data);
        ASSERT_OK(self.engine->Run(std::move(again)));
        for (float value : data) ASSERT_EQ(value, self.size);
      }
    });
  }
}

RING_TEST(CompressionTakesFloat32Only) {
  RunRanks({2, "tcp", 1}, [](Rank& self) {
    std::vector<double> data(3, 1.0);
    Request request;
    request.kind = CollectiveKind::kAllreduce;
    request.name = "wide";
    request.dtype = DataType::kFloat64;
    request.wire_dtype = DataType::kBfloat16;
    request.inputs = {{data.data(), {3}}};
    request.outputs = {data.data()};
    const Status status = self.engine->Run(std::move(request));
    ASSERT_TRUE(status.message().find("takes float32, got float64") !=
                std::string::npos)
        << status.message();
  });
}

}  // namespace
}  // namespace ring_keras
