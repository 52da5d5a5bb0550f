// Averages that 16 bits can hold, of values whose sum they cannot: on every way
// that an allreduce or a reduce_scatter takes.
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cpp/support/run_ranks.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {
namespace {

using testing::Rank;
using testing::RankOptions;
using testing::RunRanks;

constexpr float kMaxFloat16 = 65504;

std::vector<RankOptions> SetupsOfAverages() {
  std::vector<RankOptions> setups;
  for (int size : {2, 3, 4}) {
    setups.push_back({size, "auto", 1});
    setups.push_back({size, "tcp", 1});
    for (int hosts = 2; hosts < size; ++hosts) {
      setups.push_back({size, "auto", hosts});
    }
  }
  return setups;
}

// One for each algorithm, by its bytes, and lengths that nothing divides.
const std::vector<int64_t> kCountsOfAverages = {1, 1023, 5003, 20011, 700007};

std::vector<uint16_t> Halves(const std::vector<float>& wide) {
  std::vector<uint16_t> narrow(wide.size());
  Narrow(DataType::kFloat16, narrow.data(), wide.data(), 1.0, wide.size());
  return narrow;
}

std::vector<float> Floats(const std::vector<uint16_t>& narrow) {
  std::vector<float> wide(narrow.size());
  Widen(DataType::kFloat16, wide.data(), narrow.data(), 1.0, narrow.size());
  return wide;
}

// The largest values, whose average is themselves, and small ones, of which
// nothing may be lost, in turn.
float ValueAt(int64_t i) { return i % 3 == 2 ? 0x1p-20f : kMaxFloat16; }

std::vector<float> Values(int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = ValueAt(i);
  return values;
}

Request Average(void* data, int64_t count, DataType dtype) {
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.reduce_op = ReduceOp::kAverage;
  request.dtype = dtype;
  request.name = StrCat("average ", count);
  request.inputs = {{data, {count}}};
  request.outputs = {data};
  return request;
}

RING_TEST(AveragesOfHalvesAreInRange) {
  for (const RankOptions& setup : SetupsOfAverages()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        for (int use = 0; use < 3; ++use) {
          std::vector<uint16_t> data = Halves(Values(count));
          ASSERT_OK(self.engine->Run(
              Average(data.data(), count, DataType::kFloat16)));
          const std::vector<float> averages = Floats(data);
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(averages[i], ValueAt(i)) << "at " << i << " of " << count;
          }
        }
      }
    });
  }
}

RING_TEST(SumsThatAreDividedAfterwardsAreInRange) {
  for (const RankOptions& setup : SetupsOfAverages()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        std::vector<uint16_t> data = Halves(Values(count));
        Request request = Average(data.data(), count, DataType::kFloat16);
        request.reduce_op = ReduceOp::kSum;
        request.postscale = 1.0 / self.size;
        ASSERT_OK(self.engine->Run(std::move(request)));
        const std::vector<float> averages = Floats(data);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(averages[i], ValueAt(i)) << "at " << i << " of " << count;
        }
      }
    });
  }
}

// Rank 0's counts for as much as all others together, the last one's nothing.
RING_TEST(WeightedAveragesOfHalvesAreInRange) {
  for (const RankOptions& setup : SetupsOfAverages()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        for (int use = 0; use < 3; ++use) {
          std::vector<uint16_t> data =
              Halves(std::vector<float>(count, kMaxFloat16));
          Request request = Average(data.data(), count, DataType::kFloat16);
          request.weight = self.rank == 0              ? 5.0 * self.size
                           : self.rank + 1 < self.size ? 5.0
                                                       : 0.0;
          ASSERT_OK(self.engine->Run(std::move(request)));
          for (float average : Floats(data)) {
            // Each rank's share is rounded before it is added.
            ASSERT_TRUE(std::abs(average - kMaxFloat16) <= 64.0f)
                << average << " of " << count;
          }
        }
      }
    });
  }
}

RING_TEST(AveragesThatTravelAsHalvesAreInRange) {
  for (const RankOptions& setup : SetupsOfAverages()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        std::vector<float> data(count);
        for (int64_t i = 0; i < count; ++i) {
          data[i] = i % 3 == 2 ? 0x1p-20f : kMaxFloat16;
        }
        Request request = Average(data.data(), count, DataType::kFloat32);
        request.wire_dtype = DataType::kFloat16;
        ASSERT_OK(self.engine->Run(std::move(request)));
        for (int64_t i = 0; i < count; ++i) {
          const float expected = i % 3 == 2 ? 0x1p-20f : kMaxFloat16;
          ASSERT_TRUE(std::abs(data[i] - expected) <= 0x1p-10f * expected)
              << data[i] << " at " << i << " of " << count;
        }
      }
    });
  }
}

RING_TEST(ReduceScatteredAveragesAreInRange) {
  for (const RankOptions& setup : SetupsOfAverages()) {
    RunRanks(setup, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        std::vector<uint16_t> data =
            Halves(std::vector<float>(count, kMaxFloat16));
        std::vector<uint16_t> part;
        Request request = Average(data.data(), count, DataType::kFloat16);
        request.kind = CollectiveKind::kReduceScatter;
        request.outputs = {};
        request.allocate_output = [&](const Shape& shape) -> StatusOr<void*> {
          part.resize(ElementCount(shape));
          return static_cast<void*>(part.data());
        };
        ASSERT_OK(self.engine->Run(std::move(request)));
        for (float average : Floats(part)) ASSERT_EQ(average, kMaxFloat16);
      }
    });
  }
}

RING_TEST(SharedBuffersOfHalvesAreInRange) {
  for (int size : {2, 3, 4}) {
    RunRanks({size, "auto", 1}, [](Rank& self) {
      for (int64_t count : kCountsOfAverages) {
        auto buffer = self.engine->mesh().buffers().Allocate(count * 2);
        ASSERT_OK(buffer.status());
        auto* data = static_cast<uint16_t*>(buffer.value().get());
        const std::vector<uint16_t> values = Halves(Values(count));
        std::copy(values.begin(), values.end(), data);
        ASSERT_OK(self.engine->Run(Average(data, count, DataType::kFloat16)));
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(data[i], values[i]);
        Request barrier;
        barrier.name = "released together";
        ASSERT_OK(self.engine->Run(std::move(barrier)));
      }
    });
  }
}

}  // namespace
}  // namespace ring_keras
