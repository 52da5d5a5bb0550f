// Whole collectives on devices through the engine, for every kind and size.
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/cpp/collectives/nccl/collective_cases.h"
#include "tests/cpp/collectives/nccl/device_ranks.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {
namespace {

using testing::DeviceArray;
using testing::DeviceRank;
using testing::Input;
using testing::Output;
using testing::Ranks;
using testing::RunDeviceRanks;
using testing::SumAt;
using testing::TestAverageOfGroup;

const std::vector<int> kSizes = {1, 2, 3, 4};

template <typename T>
void TestSum(DeviceRank& self, DataType dtype) {
  const DeviceArray<T> input(Input<T>(self.rank, 1000));
  const DeviceArray<T> output(1000);
  Request request =
      self.MakeRequest(CollectiveKind::kAllreduce, NameOf(dtype), dtype);
  request.inputs = {{input.get(), {10, 100}}};
  request.outputs = {output.get()};
  ASSERT_OK(self.engine().Run(std::move(request)));
  const std::vector<T> sums = output.Read();
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(sums[i], static_cast<T>(SumAt(self.size, i))) << NameOf(dtype);
  }
}

RING_TEST(AllreduceSumsEveryTypeOfNccls) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      TestSum<float>(self, DataType::kFloat32);
      TestSum<double>(self, DataType::kFloat64);
      TestSum<int32_t>(self, DataType::kInt32);
      TestSum<int64_t>(self, DataType::kInt64);
      TestSum<int8_t>(self, DataType::kInt8);
      TestSum<uint8_t>(self, DataType::kUint8);
    });
  }
}

RING_TEST(AllreduceTakesTheOtherOps) {
  RunDeviceRanks(Ranks(3), [](DeviceRank& self) {
    const auto reduce = [&](ReduceOp op, float value) {
      const DeviceArray<float> data(std::vector<float>{value, -value, 1});
      Request request = AllreduceInPlace(self, NameOf(op), data.get(), 3);
      request.reduce_op = op;
      EXPECT_OK(self.engine().Run(std::move(request)));
      return data.Read();
    };
    const auto value = static_cast<float>(self.rank + 2);
    EXPECT_EQ(reduce(ReduceOp::kMin, value), (std::vector<float>{2, -4, 1}));
    EXPECT_EQ(reduce(ReduceOp::kMax, value), (std::vector<float>{4, -2, 1}));
    EXPECT_EQ(reduce(ReduceOp::kProduct, value),
              (std::vector<float>{24, -24, 1}));
    EXPECT_EQ(reduce(ReduceOp::kAverage, value),
              (std::vector<float>{3, -3, 1}));
  });
}

RING_TEST(GroupsShareTheBuffer) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      TestAverageOfGroup(self, {5, 0, 33000, 1, 90001, 17});
    });
  }
}

// A factor of one rank's alone, in a single tensor and in a group.
RING_TEST(PrescaleMayDifferBetweenRanks) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      const DeviceArray<float> one(std::vector<float>{2});
      const DeviceArray<float> other(std::vector<float>{4});
      for (bool grouped : {false, true}) {
        const DeviceArray<float> output(2);
        Request request = self.MakeRequest(CollectiveKind::kAllreduce,
                                           NameOf(op), DataType::kFloat32);
        request.reduce_op = op;
        request.prescale = self.rank == 0 ? 1 : 3;
        request.postscale = 10;
        request.inputs = {{one.get(), {1}}};
        request.outputs = {output.get()};
        if (grouped) {
          request.inputs.push_back({other.get(), {1}});
          request.outputs.push_back(output.get() + 1);
        }
        ASSERT_OK(self.engine().Run(std::move(request)));
        const float expected = op == ReduceOp::kSum       ? 80
                               : op == ReduceOp::kAverage ? 40
                                                          : 60;
        EXPECT_EQ(output.Read()[0], expected) << NameOf(op);
        if (grouped) {
          EXPECT_EQ(output.Read()[1], 2 * expected);
        }
      }
    }
  });
}

RING_TEST(WeightsDecideAnAverage) {
  for (int size : {1, 3}) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      const DeviceArray<float> data(
          std::vector<float>{static_cast<float>(self.rank + 1)});
      Request request = AllreduceInPlace(self, "weighted", data.get(), 1);
      request.reduce_op = ReduceOp::kAverage;
      request.weight = self.rank;
      ASSERT_OK(self.engine().Run(std::move(request)));
      // (1 * 2 + 2 * 3) / 3; alone, all weights are 0.
      const double expected = self.size == 1 ? 0 : 8.0 / 3;
      EXPECT_TRUE(std::abs(data.Read()[0] - expected) < 1e-6);
    });
  }
}

// Between hosts each contribution is rounded once, and the sum, made in
// float32, once.
RING_TEST(NarrowSumsAreMadeInFloat32) {
  for (DataType wire : {DataType::kBfloat16, DataType::kFloat16}) {
    for (int size : kSizes) {
      RunDeviceRanks(Ranks(size, "tcp"), [&](DeviceRank& self) {
        const auto value = [](int rank, size_t i) {
          return 1.0f + static_cast<float>((i * 13 + rank * 29) % 97) / 89;
        };
        const auto rounded = [&](float from) {
          uint16_t narrow = 0;
          float wide = 0;
          Narrow(wire, &narrow, &from, 1.0, 1);
          Widen(wire, &wide, &narrow, 1.0, 1);
          return wide;
        };
        const std::vector<size_t> counts = {1000, 3, 0, 40001};
        std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
        Request request = self.MakeRequest(CollectiveKind::kAllreduce, "narrow",
                                           DataType::kFloat32);
        request.wire_dtype = wire;
        request.postscale = 2;
        for (size_t count : counts) {
          std::vector<float> input(count);
          for (size_t i = 0; i < count; ++i) input[i] = value(self.rank, i);
          tensors.push_back(std::make_unique<DeviceArray<float>>(input));
          request.inputs.push_back(
              {tensors.back()->get(), {static_cast<int64_t>(count)}});
          request.outputs.push_back(tensors.back()->get());
        }
        ASSERT_OK(self.engine().Run(std::move(request)));
        for (const auto& tensor : tensors) {
          const std::vector<float> sums = tensor->Read();
          for (size_t i = 0; i < sums.size(); ++i) {
            float sum = 0;
            for (int rank = 0; rank < self.size; ++rank) {
              sum += self.size == 1 ? value(rank, i) : rounded(value(rank, i));
            }
            if (self.size > 1) sum = rounded(sum);
            ASSERT_EQ(sums[i], 2 * sum);
          }
        }
      });
    }
  }
}

// What 16 bits can hold comes out although the bare sum, 80000 or 120000, could
// not be held.
constexpr float kLargeValue = 40000;

void ExpectMeans(const std::vector<float>& values, int size) {
  // A third, and the halves of sums that float16 rounds to 64.
  for (const float value : values) {
    ASSERT_TRUE(std::abs(value - kLargeValue) <= (size == 2 ? 0 : 64))
        << value << " with " << size << " ranks";
  }
}

std::vector<uint16_t> Float16(const std::vector<float>& values) {
  std::vector<uint16_t> narrow(values.size());
  Narrow(DataType::kFloat16, narrow.data(), values.data(), 1.0, values.size());
  return narrow;
}

std::vector<float> FromFloat16(const std::vector<uint16_t>& values) {
  std::vector<float> wide(values.size());
  Widen(DataType::kFloat16, wide.data(), values.data(), 1.0, values.size());
  return wide;
}

RING_TEST(SumsIn16BitsStayInRange) {
  for (int size : {2, 3}) {
    RunDeviceRanks(Ranks(size, "tcp"), [](DeviceRank& self) {
      const std::vector<float> values(1000, kLargeValue);
      // One tensor, two that share the buffer, and one that travels narrow.
      for (const size_t count : {size_t{1}, size_t{2}}) {
        const DeviceArray<uint16_t> data(Float16(values));
        Request request = self.MakeRequest(CollectiveKind::kAllreduce, "half",
                                           DataType::kFloat16);
        request.postscale = 1.0 / self.size;
        for (size_t i = 0; i < count; ++i) {
          uint16_t* part = data.get() + i * values.size() / 2;
          request.inputs.push_back({part, {500}});
          request.outputs.push_back(part);
        }
        ASSERT_OK(self.engine().Run(std::move(request)));
        std::vector<uint16_t> reduced = data.Read();
        reduced.resize(count * values.size() / 2);
        ExpectMeans(FromFloat16(reduced), self.size);
      }
      const DeviceArray<float> narrow(values);
      Request request = AllreduceInPlace(self, "narrow", narrow.get(), 1000);
      request.wire_dtype = DataType::kFloat16;
      request.postscale = 1.0 / self.size;
      ASSERT_OK(self.engine().Run(std::move(request)));
      ExpectMeans(narrow.Read(), self.size);
    });
  }
}

RING_TEST(ScatteredSumsIn16BitsStayInRange) {
  for (int size : {2, 3}) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      for (const int64_t rows : {int64_t{12}, int64_t{13}}) {
        const DeviceArray<uint16_t> input(
            Float16(std::vector<float>(rows, kLargeValue)));
        Output output;
        Request request = self.MakeRequest(CollectiveKind::kReduceScatter,
                                           "scatter", DataType::kFloat16);
        request.postscale = 1.0 / self.size;
        request.inputs = {{input.get(), {rows}}};
        request.allocate_output = output.Allocator();
        ASSERT_OK(self.engine().Run(std::move(request)));
        ExpectMeans(FromFloat16(output.Read<uint16_t>()), self.size);
      }
    });
  }
}

RING_TEST(BroadcastCopiesTheRootsTensors) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      const int root = self.size - 1;
      const DeviceArray<uint16_t> first(Input<uint16_t>(self.rank, 70));
      const DeviceArray<uint16_t> second(Input<uint16_t>(self.rank, 3));
      const DeviceArray<uint16_t> output(3);
      Request request = self.MakeRequest(CollectiveKind::kBroadcast, "copy",
                                         DataType::kUint16);
      request.root = root;
      request.inputs = {{first.get(), {70}}, {second.get(), {3}}, {}};
      request.inputs[2].shape = {0};
      request.outputs = {first.get(), output.get(), nullptr};
      ASSERT_OK(self.engine().Run(std::move(request)));
      EXPECT_EQ(first.Read(), Input<uint16_t>(root, 70));
      EXPECT_EQ(output.Read(), Input<uint16_t>(root, 3));
    });
  }
}

RING_TEST(AllgatherTakesEqualAndUnevenRows) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      for (int step : {0, 1, 2}) {
        for (int base : {0, 5}) {
          const auto rows_of = [&](int rank) { return base + step * rank; };
          const DeviceArray<int16_t> input(
              Input<int16_t>(self.rank, rows_of(self.rank) * 3));
          Output output;
          Request request = self.MakeRequest(CollectiveKind::kAllgather,
                                             "gather", DataType::kInt16);
          request.inputs = {{input.get(), {rows_of(self.rank), 3}}};
          request.allocate_output = output.Allocator();
          ASSERT_OK(self.engine().Run(std::move(request)));
          std::vector<int16_t> expected;
          for (int rank = 0; rank < self.size; ++rank) {
            const auto part = Input<int16_t>(rank, rows_of(rank) * 3);
            expected.insert(expected.end(), part.begin(), part.end());
          }
          EXPECT_EQ(output.Read<int16_t>(), expected);
        }
      }
    });
  }
}

RING_TEST(ReduceScatterGivesTheFirstRanksMore) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        for (int64_t rows : {0, 1, 4, 12, 1001}) {
          constexpr int64_t kColumns = 5;
          const DeviceArray<double> input(
              Input<double>(self.rank, rows * kColumns));
          Output output;
          Request request = self.MakeRequest(CollectiveKind::kReduceScatter,
                                             "scatter", DataType::kFloat64);
          request.reduce_op = op;
          request.prescale = 2;
          request.postscale = op == ReduceOp::kSum ? 0.5 : 0.5 * self.size;
          request.inputs = {{input.get(), {rows, kColumns}}};
          request.allocate_output = output.Allocator();
          ASSERT_OK(self.engine().Run(std::move(request)));
          const int64_t extra = rows % self.size;
          const int64_t own = rows / self.size + (self.rank < extra ? 1 : 0);
          const int64_t begin = rows / self.size * self.rank +
                                std::min<int64_t>(self.rank, extra);
          EXPECT_EQ(output.shape(), (Shape{own, kColumns}));
          const std::vector<double> sums = output.Read<double>();
          for (size_t i = 0; i < sums.size(); ++i) {
            const double sum = SumAt(self.size, begin * kColumns + i);
            ASSERT_TRUE(std::abs(sums[i] - sum) < 1e-9) << rows << " rows";
          }
        }
      }
    });
  }
}

RING_TEST(AlltoallTradesRows) {
  for (int size : kSizes) {
    RunDeviceRanks(Ranks(size), [](DeviceRank& self) {
      // Rank a sends rank b a + b rows; none from rank 0 to itself.
      std::vector<int64_t> splits;
      std::vector<uint8_t> rows;
      for (int to = 0; to < self.size; ++to) {
        splits.push_back(self.rank + to);
        rows.insert(rows.end(), 2 * splits.back(),
                    static_cast<uint8_t>(10 * self.rank + to));
      }
      const DeviceArray<uint8_t> input(rows);
      Output output;
      std::vector<int64_t> received;
      Request request =
          self.MakeRequest(CollectiveKind::kAlltoall, "trade", DataType::kBool);
      request.inputs = {
          {input.get(), {static_cast<int64_t>(rows.size()) / 2, 2}}};
      request.splits = splits;
      request.received_splits = &received;
      request.allocate_output = output.Allocator();
      ASSERT_OK(self.engine().Run(std::move(request)));
      std::vector<uint8_t> expected;
      for (int from = 0; from < self.size; ++from) {
        expected.insert(expected.end(), 2 * (from + self.rank),
                        static_cast<uint8_t>(10 * from + self.rank));
      }
      EXPECT_EQ(received, splits);
      EXPECT_EQ(output.Read<uint8_t>(), expected);
    });
  }
}

RING_TEST(WhatNcclCannotComputeWithIsNamed) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    const DeviceArray<int16_t> data(4);
    Request request = self.MakeRequest(CollectiveKind::kAllreduce, "narrow",
                                       DataType::kInt16);
    request.inputs = {{data.get(), {4}}};
    request.outputs = {data.get()};
    const Status status = self.engine().Run(std::move(request));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().find("int16") != std::string::npos)
        << status.message();
  });
}

// Empty tensors, and nothing but them.
RING_TEST(NothingIsReducedWithoutACall) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    Request request = AllreduceInPlace(self, "empty", nullptr, 0);
    ASSERT_OK(self.engine().Run(std::move(request)));
  });
}

}  // namespace
}  // namespace ring_keras
