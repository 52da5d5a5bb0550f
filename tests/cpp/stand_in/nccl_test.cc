// What NCCL computes, in the stand-in.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cpp/stand_in/nccl_support.h"

namespace ring_keras::testing {
namespace {

using namespace stand_in;

constexpr size_t kCounts[] = {1, 7, 1000, 100'003};

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] =
        static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 11);
  }
  return values;
}

// What every rank's values come to, element by element.
std::vector<float> Combined(int size, size_t count, int op) {
  std::vector<float> result = Values(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> other = Values(rank, count);
    for (size_t i = 0; i < count; ++i) {
      switch (op) {
        case kNcclProd:
          result[i] *= other[i];
          break;
        case kNcclMax:
          result[i] = std::max(result[i], other[i]);
          break;
        case kNcclMin:
          result[i] = std::min(result[i], other[i]);
          break;
        default:
          result[i] += other[i];
      }
    }
  }
  return result;
}

RING_TEST(AllReduceInEveryOpAndInPlace) {
  for (int size = 1; size <= 4; ++size) {
    RunNcclRanks(size, [](NcclRank& self) {
      for (const size_t count : kCounts) {
        for (const int op : {+kNcclSum, +kNcclProd, +kNcclMax, +kNcclMin}) {
          DeviceArray<float> values(Values(self.rank, count));
          EXPECT_EQ(
              Settled(ncclAllReduce(values.get(), values.get(), count,
                                    kNcclFloat32, op, self.comm, self.stream),
                      self.comm),
              0);
          EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
          EXPECT_TRUE(values.Read() == Combined(self.size, count, op))
              << self.size << " ranks, " << count << " elements, op " << op;
        }
      }
    });
  }
}

RING_TEST(AverageAndScaledSums) {
  RunNcclRanks(4, [](NcclRank& self) {
    DeviceArray<float> values(std::vector<float>{float(self.rank), 2});
    DeviceArray<float> averages(2);
    EXPECT_EQ(
        Settled(ncclAllReduce(values.get(), averages.get(), 2, kNcclFloat32,
                              kNcclAvg, self.comm, self.stream),
                self.comm),
        0);
    int op = 0;
    float factor = static_cast<float>(self.rank);  // Each rank's own.
    EXPECT_EQ(
        ncclRedOpCreatePreMulSum(&op, &factor, kNcclFloat32, 1, self.comm), 0);
    factor = 100;  // Was read.
    DeviceArray<float> sums(2);
    EXPECT_EQ(ncclAllReduce(values.get(), sums.get(), 2, kNcclFloat64, op,
                            self.comm, self.stream),
              kNcclInvalidArgument)
        << "the op is of float32";
    EXPECT_EQ(ncclAllReduce(values.get(), sums.get(), 2, kNcclFloat32, op,
                            self.comm, self.stream),
              0);
    EXPECT_EQ(ncclRedOpDestroy(op, self.comm), 0);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
    EXPECT_EQ(averages.Read(), (std::vector<float>{1.5, 2}));
    EXPECT_EQ(sums.Read(), (std::vector<float>{14, 12}));
  });
}

template <typename T>
void ExpectSum(const NcclRank& self, int dtype, T one, T sum) {
  DeviceArray<T> values(std::vector<T>(100, one));
  EXPECT_EQ(Settled(ncclAllReduce(values.get(), values.get(), 100, dtype,
                                  kNcclSum, self.comm, self.stream),
                    self.comm),
            0);
  EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
  EXPECT_TRUE(values.Read() == std::vector<T>(100, sum)) << "dtype " << dtype;
}

RING_TEST(EveryType) {
  RunNcclRanks(3, [](NcclRank& self) {
    ExpectSum<int8_t>(self, kNcclInt8, 100, 44);  // Wraps.
    ExpectSum<uint8_t>(self, kNcclUint8, 100, 44);
    ExpectSum<int32_t>(self, kNcclInt32, -5, -15);
    ExpectSum<uint32_t>(self, kNcclUint32, 1u << 31, 1u << 31);
    ExpectSum<int64_t>(self, kNcclInt64, -(int64_t{1} << 40),
                       -3 * (int64_t{1} << 40));
    ExpectSum<uint64_t>(self, kNcclUint64, 5, 15);
    ExpectSum<uint16_t>(self, kNcclFloat16, 0x3e00, 0x4480);   // 1.5, 4.5
    ExpectSum<uint16_t>(self, kNcclFloat16, 0x0001, 0x0003);   // Not normal.
    ExpectSum<uint16_t>(self, kNcclFloat16, 0x7bff, 0x7c00);   // Infinity.
    ExpectSum<uint16_t>(self, kNcclBfloat16, 0x3fc0, 0x4090);  // 1.5, 4.5
    ExpectSum<float>(self, kNcclFloat32, 0.5, 1.5);
    ExpectSum<double>(self, kNcclFloat64, 0.5, 1.5);
  });
}

RING_TEST(GatherScatterBroadcastReduce) {
  for (int size = 1; size <= 4; ++size) {
    RunNcclRanks(size, [](NcclRank& self) {
      const auto n = static_cast<size_t>(self.size);
      const int last = self.size - 1;
      constexpr size_t kCount = 30'001;
      const std::vector<float> mine = Values(self.rank, kCount);
      DeviceArray<float> input(mine);
      DeviceArray<float> gathered(kCount * n);
      DeviceArray<float> whole(Values(self.rank, kCount * n));
      DeviceArray<float> part(kCount);
      DeviceArray<float> root(mine);
      DeviceArray<float> reduced(kCount);
      EXPECT_EQ(ncclGroupStart(), 0);
      ncclAllGather(input.get(), gathered.get(), kCount, kNcclFloat32,
                    self.comm, self.stream);
      ncclReduceScatter(whole.get(), part.get(), kCount, kNcclFloat32, kNcclSum,
                        self.comm, self.stream);
      ncclBroadcast(root.get(), root.get(), kCount, kNcclFloat32, last,
                    self.comm, self.stream);
      ncclReduce(input.get(), reduced.get(), kCount, kNcclFloat32, kNcclSum,
                 last, self.comm, self.stream);
      EXPECT_EQ(Settled(ncclGroupEnd(), self.comm), 0);
      EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);

      std::vector<float> all;
      for (int rank = 0; rank < self.size; ++rank) {
        const std::vector<float> values = Values(rank, kCount);
        all.insert(all.end(), values.begin(), values.end());
      }
      EXPECT_TRUE(gathered.Read() == all);
      const std::vector<float> sum = Combined(self.size, kCount * n, kNcclSum);
      const auto begin = sum.begin() + static_cast<long>(kCount) * self.rank;
      EXPECT_TRUE(part.Read() ==
                  std::vector<float>(begin, begin + static_cast<long>(kCount)));
      EXPECT_TRUE(root.Read() == Values(last, kCount));
      if (self.rank == last) {
        EXPECT_TRUE(reduced.Read() == Combined(self.size, kCount, kNcclSum));
      }
    });
  }
}

RING_TEST(SendsAndReceivesOfAGroupGoTogether) {
  RunNcclRanks(4, [](NcclRank& self) {
    constexpr size_t kCount = 50'000;  // More than is on its way at a time.
    const auto n = static_cast<size_t>(self.size);
    DeviceArray<float> input(Values(self.rank, kCount * n));
    DeviceArray<float> output(kCount * n);
    ncclGroupStart();
    for (int peer = 0; peer < self.size; ++peer) {
      const size_t at = kCount * static_cast<size_t>(peer);
      EXPECT_EQ(ncclSend(input.get() + at, kCount, kNcclFloat32, peer,
                         self.comm, self.stream),
                0);
      EXPECT_EQ(ncclRecv(output.get() + at, kCount, kNcclFloat32, peer,
                         self.comm, self.stream),
                0);
    }
    EXPECT_EQ(Settled(ncclGroupEnd(), self.comm), 0);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
    std::vector<float> expected;
    for (int peer = 0; peer < self.size; ++peer) {
      const std::vector<float> theirs = Values(peer, kCount * n);
      const auto begin = theirs.begin() + static_cast<long>(kCount) * self.rank;
      expected.insert(expected.end(), begin, begin + static_cast<long>(kCount));
    }
    EXPECT_TRUE(output.Read() == expected);
  });
}

RING_TEST(ASplitOrdersByKeyAndLeavesSomeOut) {
  RunNcclRanks(4, [](NcclRank& self) {
    // Ranks 0 and 2 in reverse order; 1 in none; 3 alone.
    const int color = self.rank == 1 ? kNcclSplitNoColor : self.rank == 3;
    ncclComm* part = nullptr;
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(
          Settled(ncclCommSplit(self.comm, color, -self.rank, &part, nullptr),
                  self.comm),
          0);
      EXPECT_EQ(part == nullptr, self.rank == 1);
      if (part == nullptr) continue;
      int rank = -1;
      int size = -1;
      EXPECT_EQ(ncclCommUserRank(part, &rank), 0);
      EXPECT_EQ(ncclCommCount(part, &size), 0);
      EXPECT_EQ(size, color == 0 ? 2 : 1);
      EXPECT_EQ(rank, self.rank == 0 ? 1 : 0);
      DeviceArray<float> value(std::vector<float>{float(self.rank + 1)});
      EXPECT_EQ(Settled(ncclAllReduce(value.get(), value.get(), 1, kNcclFloat32,
                                      kNcclSum, part, self.stream),
                        part),
                0);
      EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
      EXPECT_EQ(value.Read()[0], 4.0f);
      Leave(part);
    }
  });
}

RING_TEST(ACallIsNotLaunchedWhileInProgress) {
  RunNcclRanks(2, [](NcclRank& self) {
    DeviceArray<float> value(std::vector<float>{1});
    const int first = ncclAllReduce(value.get(), value.get(), 1, kNcclFloat32,
                                    kNcclSum, self.comm, self.stream);
    EXPECT_EQ(first, kNcclInProgress) << "the first of its kind connects";
    EXPECT_EQ(Settled(self.comm), 0);
    EXPECT_EQ(ncclAllReduce(value.get(), value.get(), 1, kNcclFloat32, kNcclSum,
                            self.comm, self.stream),
              0);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
    EXPECT_EQ(value.Read()[0], 4.0f);
  });
}

RING_TEST(TheLogIsInLaunchOrder) {
  RingKerasStandInClearLog();
  RunNcclRanks(1, [](NcclRank& self) {
    DeviceArray<float> value(std::vector<float>{1});
    DeviceArray<int> other(std::vector<int>{1});
    EXPECT_EQ(Settled(ncclAllReduce(value.get(), value.get(), 1, kNcclFloat32,
                                    kNcclSum, self.comm, self.stream),
                      self.comm),
              0);
    EXPECT_EQ(Settled(ncclBroadcast(other.get(), other.get(), 1, kNcclInt32, 0,
                                    self.comm, self.stream),
                      self.comm),
              0);
    EXPECT_EQ(cudaStreamSynchronize(self.stream), 0);
  });
  std::string calls;  // Without what is different every time.
  std::istringstream log(RingKerasStandInLog());
  for (std::string line; std::getline(log, line);) {
    if (line == "init 1 0") continue;
    EXPECT_EQ(line.substr(0, 5), "nccl ");
    calls += line.substr(std::strlen("nccl 0123456789abcdef ")) + ";";
  }
  EXPECT_EQ(calls, "ncclAllReduce 1 float32 0 0;ncclBroadcast 1 int32 0 0;");
}

RING_TEST(NothingIsLeft) {
  EXPECT_EQ(RingKerasStandInCommunicators(), 0);
  EXPECT_EQ(RingKerasStandInStreams(), 0);
  EXPECT_EQ(RingKerasStandInEvents(), 0);
  EXPECT_EQ(RingKerasStandInAllocations(), 0);
}

}  // namespace
}  // namespace ring_keras::testing
