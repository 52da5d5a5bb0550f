// Collectives of more than a bucket, and of more than the fusion buffer holds.
#include <cstdint>
#include <vector>

#include "tests/cpp/collectives/nccl/collective_cases.h"
#include "tests/cpp/collectives/nccl/device_ranks.h"

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

constexpr size_t kMebi = size_t{1} << 20;  // Elements of 4 bytes.

// Large ones beside the buffer, small ones through it, in one call.
RING_TEST(LargeTensorsGoBesideTheBuffer) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    TestAverageOfGroup(self, {3, 4 * kMebi + 3, 100});
  });
}

// The second round goes on within a tensor.
RING_TEST(WhatTheBufferHasNoRoomForTakesAnotherRound) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    TestAverageOfGroup(self, std::vector<size_t>(5, 7 * kMebi / 2 + 1));
  });
}

RING_TEST(ALargeReduceScatterGoesInPieces) {
  RunDeviceRanks(Ranks(2), [](DeviceRank& self) {
    constexpr int64_t kRows = (int64_t{17} << 20) + 1;  // 68 MiB.
    const DeviceArray<int32_t> input(Input<int32_t>(self.rank, kRows));
    Output output;
    Request request = self.MakeRequest(CollectiveKind::kReduceScatter,
                                       "scatter", DataType::kInt32);
    request.inputs = {{input.get(), {kRows}}};
    request.allocate_output = output.Allocator();
    ASSERT_OK(self.engine().Run(std::move(request)));
    const std::vector<int32_t> sums = output.Read<int32_t>();
    const int64_t begin = self.rank == 0 ? 0 : kRows / 2 + 1;
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(sums[i], static_cast<int32_t>(SumAt(2, begin + i)));
    }
  });
}

}  // namespace
}  // namespace ring_keras
