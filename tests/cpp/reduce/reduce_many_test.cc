#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/kernel_table.h"
#include "tf_ops/reduce/reduce.h"
#include "tf_ops/reduce/streaming.h"

namespace ring_keras::testing {
namespace {

using reduce::KernelTable;

constexpr int kMaxSourceCount = 20;

// `source_count` buffers of random elements at odd addresses.
std::vector<Buffer> RandomSources(DataType dtype, int source_count,
                                  size_t count) {
  std::vector<Buffer> sources;
  for (int i = 0; i < source_count; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    sources.emplace_back(RandomElements(dtype, count, seed), seed % 5);
  }
  return sources;
}

std::vector<const void*> Pointers(std::vector<Buffer>& buffers) {
  std::vector<const void*> pointers;
  for (Buffer& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

RING_TEST(EveryTableMatchesTheReference) {
  for (DataType dtype : AllDataTypes()) {
    for (ReduceOp op : AllReduceOps()) {
      if (!Supports(dtype, op)) continue;
      for (int n = 2; n <= kMaxSourceCount; ++n) {
        for (size_t count : {0, 1, 67, 515}) {
          std::vector<Buffer> sources = RandomSources(dtype, n, count);
          const auto pointers = Pointers(sources);
          const Bytes expected = ReferenceReduce(dtype, op, pointers, count);
          for (const KernelTable* table : RunnableTables()) {
            Buffer out(expected.size(), 1);
            const ReduceOutput to = {out.data()};
            table->reduce_many[static_cast<int>(dtype)][static_cast<int>(op)](
                &to, 1, pointers.data(), n, count);
            EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
                << table->name << " " << NameOf(op) << " of " << n;
            EXPECT_TRUE(out.IsEndIntact())
                << table->name << " " << NameOf(op) << " of " << n;
          }
        }
      }
    }
  }
}

RING_TEST(OutMayBeAnySource) {
  constexpr size_t kCount = 301;
  for (DataType dtype : AllDataTypes()) {
    for (int n : {1, 2, 3, 8, 9, 20}) {
      for (int in_place = 0; in_place < n; ++in_place) {
        std::vector<Buffer> sources = RandomSources(dtype, n, kCount);
        const auto pointers = Pointers(sources);
        Bytes expected =
            ReferenceReduce(dtype, ReduceOp::kMax, pointers, kCount);
        // One source is a copy, NaN and all.
        if (n == 1) std::memcpy(expected.data(), pointers[0], expected.size());
        Buffer& out = sources[static_cast<size_t>(in_place)];
        const ReduceOutput to = {out.data()};
        ReduceMany(dtype, ReduceOp::kMax, &to, 1, pointers.data(), n, kCount);
        EXPECT_EQ(FirstDifference(dtype, expected, out.data()), "")
            << "out is source " << in_place << " of " << n;
        EXPECT_TRUE(out.IsEndIntact());
      }
    }
  }
}

// As ranks do that write to each other's memory: some outputs are sources, some
// are elsewhere and stream. `reduce(table, outs, out_count, sources)`.
template <typename Reduce>
void ExpectEveryOutput(DataType dtype, size_t count, Reduce reduce) {
  constexpr int kSourceCount = 3;
  for (const KernelTable* table : RunnableTables()) {
    std::vector<Buffer> sources = RandomSources(dtype, kSourceCount, count);
    const auto pointers = Pointers(sources);
    const Bytes expected =
        ReferenceReduce(dtype, ReduceOp::kMax, pointers, count);
    Buffer elsewhere(expected.size(), 7);
    Buffer streamed(expected.size(), 0);
    Buffer streamed_too(expected.size(), 0);
    Buffer* const all[] = {&sources[2], &streamed, &elsewhere, &sources[0],
                           &streamed_too};
    ReduceOutput outs[5] = {};
    for (int i = 0; i < 5; ++i) outs[i] = {all[i]->data(), i == 1 || i == 4};
    reduce(*table, outs, 5, pointers.data());
    StreamingFence();
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(FirstDifference(dtype, expected, all[i]->data()), "")
          << table->name << ", output " << i;
      EXPECT_TRUE(all[i]->IsEndIntact()) << table->name << ", output " << i;
    }
  }
}

RING_TEST(EveryOutputGetsTheResult) {
  constexpr int kMax = static_cast<int>(ReduceOp::kMax);
  for (DataType dtype : AllDataTypes()) {
    const int row = static_cast<int>(dtype);
    for (size_t count : {0, 1, 67, 515}) {
      ExpectEveryOutput(dtype, count,
                        [&](const KernelTable& table, const ReduceOutput* outs,
                            int out_count, const void* const* sources) {
                          table.reduce_many[row][kMax](outs, out_count, sources,
                                                       3, count);
                        });
      if (!IsFloatingPoint(dtype)) continue;
      ExpectEveryOutput(dtype, count,
                        [&](const KernelTable& table, const ReduceOutput* outs,
                            int out_count, const void* const* sources) {
                          table.reduce_scaled[row][kMax](
                              outs, out_count, sources, 3, 1.0, count);
                        });
    }
  }
}

RING_TEST(OneSourceIsCopied) {
  const Bytes in = RandomElements(DataType::kFloat32, 77, 1);
  Bytes out(in.size());
  const void* const sources[] = {in.data()};
  const ReduceOutput to = {out.data()};
  ReduceMany(DataType::kFloat32, ReduceOp::kSum, &to, 1, sources, 1, 77);
  EXPECT_EQ(FirstDifference(DataType::kFloat32, in, out.data()), "");
  const ReduceOutput nowhere = {nullptr};
  ReduceMany(DataType::kFloat32, ReduceOp::kSum, &nowhere, 1, sources, 1, 0);
}

RING_TEST(TwoSourcesMatchTheReduceFunction) {
  constexpr size_t kCount = 1001;
  for (DataType dtype : AllDataTypes()) {
    for (ReduceOp op : AllReduceOps()) {
      if (!Supports(dtype, op)) continue;
      std::vector<Buffer> sources = RandomSources(dtype, 2, kCount);
      const auto pointers = Pointers(sources);
      Bytes many(kCount * SizeOf(dtype));
      Bytes pair(many.size());
      const ReduceOutput to = {many.data()};
      ReduceMany(dtype, op, &to, 1, pointers.data(), 2, kCount);
      GetReduceFunction(dtype, op)(pair.data(), pointers[0], pointers[1],
                                   kCount);
      EXPECT_EQ(FirstDifference(dtype, pair, many.data()), "") << NameOf(op);
    }
  }
}

RING_TEST(SixteenBitFloatsAreRoundedOnce) {
  // 256 + 1 is not a bfloat16 and ties to 256, 2048 + 1 likewise in float16:
  // rounding after each step would give the first source back.
  const uint16_t bfloat16_256 = 0x4380, bfloat16_1 = 0x3f80;
  const uint16_t float16_2048 = 0x6800, float16_1 = 0x3c00;
  for (int n : {3, 9, 17}) {
    std::vector<const void*> sources(static_cast<size_t>(n), &bfloat16_1);
    sources[0] = &bfloat16_256;
    uint16_t out = 0;
    const ReduceOutput to = {&out};
    ReduceMany(DataType::kBfloat16, ReduceOp::kSum, &to, 1, sources.data(), n,
               1);
    // 256 + (n - 1) is even, and bfloat16 counts in twos there.
    EXPECT_EQ(out, 0x4380 + (n - 1) / 2) << n << " sources";

    sources.assign(static_cast<size_t>(n), &float16_1);
    sources[0] = &float16_2048;
    ReduceMany(DataType::kFloat16, ReduceOp::kSum, &to, 1, sources.data(), n,
               1);
    EXPECT_EQ(out, 0x6800 + (n - 1) / 2) << n << " sources";
  }
}

}  // namespace
}  // namespace ring_keras::testing
