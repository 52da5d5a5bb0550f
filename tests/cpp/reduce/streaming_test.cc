#include "tf_ops/reduce/streaming.h"

#include <cstdint>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/reduce/kernel_table.h"

namespace ring_keras::testing {
namespace {

using reduce::KernelTable;
using reduce::kLineBytes;

constexpr unsigned char kUntouched = 0xee;

Bytes Numbered(size_t nbytes) {
  Bytes numbered(nbytes);
  for (size_t i = 0; i < nbytes; ++i) {
    numbered[i] = static_cast<unsigned char>(i % 131);
  }
  return numbered;
}

// The first byte of `bytes` at which a line starts.
size_t FirstLine(const Bytes& bytes) {
  return -reinterpret_cast<uintptr_t>(bytes.data()) % kLineBytes;
}

RING_TEST(CopiesWhateverTheAlignment) {
  constexpr size_t kMost = 5 * kLineBytes;
  const Bytes source = Numbered(kMost + kLineBytes);
  for (size_t nbytes : {0, 1, 63, 64, 65, 128, 200, 256, 320}) {
    for (size_t from : {0, 1, 32}) {
      for (size_t to = 0; to < kLineBytes; ++to) {
        Bytes target(kMost + 3 * kLineBytes, kUntouched);
        const size_t begin = FirstLine(target) + to;
        StreamingCopy(target.data() + begin, source.data() + from, nbytes);
        StreamingFence();
        for (size_t i = 0; i < target.size(); ++i) {
          const bool is_copied = i >= begin && i < begin + nbytes;
          ASSERT_EQ(int{target[i]},
                    int{is_copied ? source[from + i - begin] : kUntouched})
              << "at " << i << ": " << nbytes << " bytes from " << from
              << " to " << begin;
        }
      }
    }
  }
}

RING_TEST(EveryProcessorCopiesWholeLines) {
  const Bytes source = Numbered(10 * kLineBytes + 1);
  for (const KernelTable* table : RunnableTables()) {
    for (size_t lines : {0, 1, 2, 9}) {
      Bytes target(13 * kLineBytes, kUntouched);
      const size_t begin = FirstLine(target) + kLineBytes;
      table->stream_lines(target.data() + begin, source.data() + 1,
                          lines * kLineBytes);
      StreamingFence();
      for (size_t i = 0; i < lines * kLineBytes; ++i) {
        ASSERT_EQ(int{target[begin + i]}, int{source[i + 1]})
            << table->name << " at " << i;
      }
      EXPECT_EQ(int{target[begin - 1]}, int{kUntouched});
      EXPECT_EQ(int{target[begin + lines * kLineBytes]}, int{kUntouched});
    }
  }
}

RING_TEST(AStreamBeginsWhereALineDoes) {
  alignas(kLineBytes) const unsigned char memory[kLineBytes] = {};
  EXPECT_TRUE(CanStream(memory));
  EXPECT_FALSE(CanStream(memory + 16));
  EXPECT_EQ(BytesBeforeStream(memory, 5000, 8), size_t{0});
  EXPECT_EQ(BytesBeforeStream(memory + 16, 5000, 8), kLineBytes - 16);
  EXPECT_EQ(BytesBeforeStream(memory + 16, 20, 4), size_t{20});
  // An element would be cut.
  EXPECT_EQ(BytesBeforeStream(memory + 4, 5000, 8), size_t{5000});
}

}  // namespace
}  // namespace ring_keras::testing
