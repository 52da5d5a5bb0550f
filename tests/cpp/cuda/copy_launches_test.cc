#include "tf_ops/cuda/copy_launches.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cpp/support/test.h"
#include "tf_ops/common/data_type.h"

namespace ring_keras::testing {
namespace {

using cuda::CopyArguments;
using cuda::CopyKernel;
using cuda::Kernel;
using cuda::Segment;

constexpr uint64_t kTileNbytes = 16384;

struct Launch {
  CopyArguments arguments;
  unsigned blocks;
};

// Addresses that nobody reads.
const void* From(uint64_t address) {
  return reinterpret_cast<const void*>(address);
}
void* To(uint64_t address) { return reinterpret_cast<void*>(address); }

std::vector<Launch> LaunchesOf(DataType from, DataType to, double scale,
                               const std::vector<Segment>& segments) {
  std::vector<Launch> launches;
  EXPECT_OK(cuda::ForEachLaunch(*CopyKernel(from, to, scale), from, to, scale,
                                segments,
                                [&](CopyArguments& arguments, unsigned blocks) {
                                  launches.push_back({arguments, blocks});
                                  return Status::Ok();
                                }));
  return launches;
}

RING_TEST(KernelFollowsTypesAndScale) {
  EXPECT_TRUE(CopyKernel(DataType::kFloat32, DataType::kFloat32, 1) ==
              Kernel::kCopy);
  EXPECT_TRUE(CopyKernel(DataType::kFloat32, DataType::kFloat32, 0.5) ==
              Kernel::kScaleFloat32);
  EXPECT_TRUE(CopyKernel(DataType::kFloat32, DataType::kBfloat16, 1) ==
              Kernel::kNarrowToBfloat16);
  EXPECT_TRUE(CopyKernel(DataType::kFloat16, DataType::kFloat32, 2) ==
              Kernel::kWidenFloat16);
  EXPECT_TRUE(CopyKernel(DataType::kBool, DataType::kBool, 1) == Kernel::kCopy);
  EXPECT_FALSE(CopyKernel(DataType::kBool, DataType::kBool, 2).has_value());
  EXPECT_FALSE(
      CopyKernel(DataType::kFloat64, DataType::kFloat16, 1).has_value());
  EXPECT_FALSE(CopyKernel(DataType::kInt32, DataType::kFloat32, 1).has_value());
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    EXPECT_TRUE(cuda::CanCopyScaled(dtype, dtype, 1)) << NameOf(dtype);
    EXPECT_EQ(cuda::CanCopyScaled(dtype, dtype, 2), dtype != DataType::kBool)
        << NameOf(dtype);
  }
}

RING_TEST(NothingIsLaunchedForNothing) {
  EXPECT_TRUE(LaunchesOf(DataType::kInt32, DataType::kInt32, 1, {}).empty());
  EXPECT_TRUE(LaunchesOf(DataType::kInt32, DataType::kInt32, 1,
                         {{From(64), To(128), 0}, {From(256), To(512), 0}})
                  .empty());
}

RING_TEST(BlocksAreCountedInBytesOfTheWiderSide) {
  const std::vector<Segment> segments = {{From(64), To(1 << 20), 1},
                                         {From(128), To(2 << 20), 4096},
                                         {From(256), To(3 << 20), 0},
                                         {From(512), To(4 << 20), 4097}};
  const auto launches =
      LaunchesOf(DataType::kFloat32, DataType::kBfloat16, 0.5, segments);
  ASSERT_EQ(launches.size(), 1);
  const CopyArguments& arguments = launches[0].arguments;
  EXPECT_EQ(launches[0].blocks, 4);
  EXPECT_EQ(arguments.segment_count, 3);
  EXPECT_EQ(arguments.scale, 0.5);
  EXPECT_TRUE(arguments.from[2] == From(512));
  EXPECT_TRUE(arguments.to[2] == To(4 << 20));
  EXPECT_EQ(arguments.count[2], 4097);
  EXPECT_EQ(arguments.tiles_end[0], 1);
  EXPECT_EQ(arguments.tiles_end[1], 2);
  EXPECT_EQ(arguments.tiles_end[2], 4);
}

RING_TEST(PlainCopiesAreOfBytes) {
  const auto launches = LaunchesOf(DataType::kFloat64, DataType::kFloat64, 1,
                                   {{From(64), To(1 << 20), 2049}});
  ASSERT_EQ(launches.size(), 1);
  EXPECT_EQ(launches[0].blocks, 2);
  EXPECT_EQ(launches[0].arguments.count[0], 2049 * 8);
}

RING_TEST(ManySegmentsTakeFewLaunches) {
  constexpr int kCount = 2 * cuda::kMaxSegments + 1;
  std::vector<Segment> segments;
  for (uint64_t i = 1; i <= kCount; ++i) {
    segments.push_back({From(i * 64), To(i << 20), i});
  }
  const auto launches =
      LaunchesOf(DataType::kFloat32, DataType::kFloat32, 0.5, segments);
  ASSERT_EQ(launches.size(), 3);
  uint64_t next = 1;
  for (const auto& [arguments, blocks] : launches) {
    EXPECT_EQ(blocks, arguments.segment_count);
    for (unsigned i = 0; i < arguments.segment_count; ++i) {
      EXPECT_TRUE(arguments.from[i] == From(next * 64));
      EXPECT_EQ(arguments.count[i], next++);
      EXPECT_EQ(arguments.tiles_end[i], i + 1);
    }
  }
  EXPECT_EQ(next, kCount + 1);
}

RING_TEST(HugeSegmentsAreCut) {
  constexpr uint64_t kCount = (uint64_t{5} << 30) + 3;
  const auto launches =
      LaunchesOf(DataType::kFloat32, DataType::kFloat16, 1,
                 {{From(1 << 20), To(uint64_t{1} << 40), kCount}});
  ASSERT_EQ(launches.size(), 1);
  const CopyArguments& arguments = launches[0].arguments;
  ASSERT_EQ(arguments.segment_count, 3);
  uint64_t done = 0;
  uint64_t tiles = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(arguments.from[i] == From((1 << 20) + done * 4));
    EXPECT_TRUE(arguments.to[i] == To((uint64_t{1} << 40) + done * 2));
    done += arguments.count[i];
    tiles += (uint64_t{arguments.count[i]} * 4 + kTileNbytes - 1) / kTileNbytes;
    EXPECT_EQ(arguments.tiles_end[i], tiles);
  }
  EXPECT_EQ(done, kCount);
  EXPECT_EQ(launches[0].blocks, tiles);
}

RING_TEST(FirstFailureEndsIt) {
  int calls = 0;
  const std::vector<Segment> segments(3 * cuda::kMaxSegments,
                                      {From(64), To(128), 1});
  const Status status = cuda::ForEachLaunch(
      Kernel::kCopy, DataType::kInt8, DataType::kInt8, 1, segments,
      [&](CopyArguments&, unsigned) {
        return ++calls == 2 ? Status(StatusCode::kInternal, "the second")
                            : Status::Ok();
      });
  EXPECT_EQ(status.message(), "the second");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace ring_keras::testing
