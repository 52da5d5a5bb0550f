// The device code, compiled for the host, against the host's own arithmetic.
#include "tf_ops/cuda/device_code.inc"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/reduce/reference.h"
#include "tests/cpp/support/test.h"
#include "tf_ops/common/data_type.h"
#include "tf_ops/cuda/copy_launches.h"
#include "tf_ops/cuda/pack.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras::testing {
namespace {

using cuda::Kernel;
using cuda::Segment;

// What a device does with a launch.
template <typename Arguments>
void RunLaunch(Kernel kernel, Arguments& arguments, unsigned blocks) {
  const auto run = cuda::kHostKernels[static_cast<int>(kernel)].run;
  void* parameters[] = {&arguments};
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < cuda::kThreads; ++thread) {
      cuda::blockIdx.x = block;
      cuda::threadIdx.x = thread;
      run(parameters);
    }
  }
}

void CopyOnHost(DataType from, DataType to, double scale,
                const std::vector<Segment>& segments) {
  const Kernel kernel = *cuda::CopyKernel(from, to, scale);
  ASSERT_OK(
      cuda::ForEachLaunch(kernel, from, to, scale, segments,
                          [&](cuda::CopyArguments& arguments, unsigned blocks) {
                            RunLaunch(kernel, arguments, blocks);
                            return Status::Ok();
                          }));
}

// The same by the host's reductions, whose bits the device must give.
Bytes Expected(DataType from, DataType to, double scale, const Bytes& in) {
  const size_t count = in.size() / SizeOf(from);
  Bytes out(count * SizeOf(to));
  if (from != to && from == DataType::kFloat32) {
    Narrow(to, out.data(), in.data(), scale, count);
  } else if (from != to) {
    Widen(from, out.data(), in.data(), scale, count);
  } else if (scale != 1) {
    Scale(from, out.data(), in.data(), scale, count);
  } else {
    out = in;
  }
  return out;
}

// Memory that ends where its content does, so that the address sanitizer sees
// who reads on, and begins `misalignment` bytes after a multiple of 16.
class ExactMemory {
 public:
  ExactMemory(const Bytes& content, size_t misalignment)
      : memory_(new (
            std::align_val_t{16}) unsigned char[misalignment + content.size()]),
        data_(memory_.get() + misalignment) {
    std::copy(content.begin(), content.end(), data_);
  }
  unsigned char* data() { return data_; }

 private:
  struct Delete {
    void operator()(unsigned char* memory) const {
      operator delete[](memory, std::align_val_t{16});
    }
  };
  std::unique_ptr<unsigned char[], Delete> memory_;
  unsigned char* data_;
};

// Mostly short, some of several tiles, some empty.
size_t RandomCount(std::mt19937_64& random) {
  switch (random() % 32) {
    case 0:
      return 0;
    case 1:
      return random() % 40000;
    case 2:
    case 3:
    case 4:
      return random() % 3000;
    default:
      return random() % 80;
  }
}

// Segments that lie in every way, packed one after the other without gaps, as
// tensors are into a fusion buffer, or each in its own way.
void CheckCopies(DataType from, DataType to, double scale, bool packed,
                 size_t segment_count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<ExactMemory> sources;
  std::vector<size_t> counts;
  std::vector<size_t> targets;
  Bytes expected(random() % 16 * SizeOf(to), 0xa5);
  for (size_t i = 0; i < segment_count; ++i) {
    const size_t count = RandomCount(random);
    const Bytes content = RandomElements(from, count, random());
    sources.emplace_back(content, random() % 16 * SizeOf(from) % 16);
    counts.push_back(count);
    targets.push_back(expected.size());
    const Bytes result = Expected(from, to, scale, content);
    expected.insert(expected.end(), result.begin(), result.end());
    if (!packed) expected.resize(expected.size() + random() % 16 * SizeOf(to));
  }
  ExactMemory target(Bytes(expected.size()), 0);
  // What is between the segments must stay.
  std::copy(expected.begin(), expected.end(), target.data());
  std::vector<Segment> segments;
  for (size_t i = 0; i < segment_count; ++i) {
    unsigned char* place = target.data() + targets[i];
    std::memset(place, 0x5a, counts[i] * SizeOf(to));
    segments.push_back({sources[i].data(), place, counts[i]});
  }

  CopyOnHost(from, to, scale, segments);

  EXPECT_EQ(FirstDifference(to, expected, target.data()), "")
      << NameOf(from) << " to " << NameOf(to) << " times " << scale
      << (packed ? ", packed" : "");
}

RING_TEST(HostKernelsAreInTheOrderOfTheirNumbers) {
  EXPECT_EQ(
      std::string(cuda::kHostKernels[static_cast<int>(Kernel::kCopy)].name),
      "ring_keras_copy");
  EXPECT_EQ(
      std::string(
          cuda::kHostKernels[static_cast<int>(Kernel::kSumBfloat16)].name),
      "ring_keras_sum_bfloat16");
  EXPECT_EQ(std::size(cuda::kHostKernels),
            static_cast<int>(Kernel::kSumBfloat16) + 1);
}

RING_TEST(CopiesEveryType) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    CheckCopies(dtype, dtype, 1, i % 2 == 0, 100, i);
  }
}

RING_TEST(ScalesEveryType) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    if (dtype == DataType::kBool) continue;
    for (const double scale :
         {0.25, 1.0 / 3, -2.5, 1e300, 0.0, double{INFINITY}, double{NAN}}) {
      CheckCopies(dtype, dtype, scale, i % 2 == 1, 40, i);
    }
  }
}

RING_TEST(ConvertsBothWays) {
  for (const DataType narrow : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const double scale : {1.0, 0.125, 1.0 / 3, -7.0}) {
      for (const bool packed : {false, true}) {
        CheckCopies(DataType::kFloat32, narrow, scale, packed, 40, 1);
        CheckCopies(narrow, DataType::kFloat32, scale, packed, 40, 2);
      }
    }
  }
}

RING_TEST(TakesMoreSegmentsThanOneLaunch) {
  CheckCopies(DataType::kBfloat16, DataType::kBfloat16, 0.5, true,
              2 * cuda::kMaxSegments + 7, 3);
  CheckCopies(DataType::kFloat32, DataType::kFloat16, 0.5, false,
              2 * cuda::kMaxSegments, 4);
}

RING_TEST(ScalesInPlace) {
  std::mt19937_64 random(5);
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    if (dtype == DataType::kBool) continue;
    for (size_t misalignment = 0; misalignment < 16;
         misalignment += SizeOf(dtype)) {
      const Bytes content = RandomElements(dtype, 5000 + random() % 16, 6);
      ExactMemory memory(content, misalignment);
      CopyOnHost(
          dtype, dtype, 0.75,
          {{memory.data(), memory.data(), content.size() / SizeOf(dtype)}});
      EXPECT_EQ(FirstDifference(dtype, Expected(dtype, dtype, 0.75, content),
                                memory.data()),
                "")
          << NameOf(dtype) << " in place";
    }
  }
}

template <typename T>
Bytes BytesOf(const std::vector<T>& elements) {
  Bytes bytes(elements.size() * sizeof(T));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

void CheckConversion(DataType from, DataType to, const Bytes& in) {
  const Bytes expected = Expected(from, to, 1, in);
  ExactMemory source(in, 0);
  ExactMemory target(Bytes(expected.size()), 0);
  CopyOnHost(from, to, 1,
             {{source.data(), target.data(), in.size() / SizeOf(from)}});
  EXPECT_EQ(FirstDifference(to, expected, target.data()), "")
      << NameOf(from) << " to " << NameOf(to);
}

RING_TEST(WidensEveryValue) {
  std::vector<uint16_t> every;
  for (uint32_t bits = 0; bits < 65536; ++bits) every.push_back(bits);
  CheckConversion(DataType::kFloat16, DataType::kFloat32, BytesOf(every));
  CheckConversion(DataType::kBfloat16, DataType::kFloat32, BytesOf(every));
}

// Around every value of either 16-bit type, and around every tie.
RING_TEST(NarrowsAroundEveryValue) {
  std::vector<uint32_t> values;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower :
         {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff,
          0x8000, 0x8001, 0xefff, 0xf000, 0xf001, 0xffff}) {
      values.push_back(upper << 16 | lower);
    }
  }
  CheckConversion(DataType::kFloat32, DataType::kFloat16, BytesOf(values));
  CheckConversion(DataType::kFloat32, DataType::kBfloat16, BytesOf(values));
}

// The division of an array into groups covers it once, and what is read for a
// group, from however it lies, is inside of the array.
template <int kGroup, int kToSize>
void CheckDivision() {
  constexpr int kWordNbytes = kGroup * kToSize;
  for (uintptr_t to = 1024; to < 1024 + kWordNbytes; to += kToSize) {
    for (uintptr_t from = 4096; from < 4096 + kWordNbytes; from += kToSize) {
      for (unsigned count = 0; count < 6 * kGroup; ++count) {
        const unsigned head = (kWordNbytes - to % kWordNbytes) % kWordNbytes;
        const unsigned offset = (from + head) % kWordNbytes;
        const auto division = cuda::device::Division::Of<kGroup, kToSize>(
            reinterpret_cast<void*>(to), count, offset == 0);
        const uintptr_t first = from + division.head * kToSize - offset;
        const uintptr_t words = division.groups + (offset == 0 ? 0 : 1);
        const uintptr_t end = first + words * kWordNbytes;
        const bool is_inside = division.groups == 0 ||
                               (first >= from && end <= from + count * kToSize);
        std::vector<int> covered(count);
        for (unsigned i = 0; i < division.singles; ++i) {
          ++covered.at(division.Single(i, kGroup));
        }
        for (unsigned i = 0; i < division.groups * kGroup; ++i) {
          ++covered.at(division.head + i);
        }
        ASSERT_TRUE(is_inside && covered == std::vector<int>(count, 1) &&
                    division.singles < cuda::kThreads)
            << count << " elements of " << kToSize << " bytes from " << from
            << " to " << to;
      }
    }
  }
}

RING_TEST(DivisionCoversEveryElementOnce) {
  CheckDivision<16, 1>();
  CheckDivision<8, 2>();
  CheckDivision<4, 2>();
  CheckDivision<4, 4>();
  CheckDivision<2, 8>();
}

RING_TEST(SumsPiecesInFloat32) {
  std::mt19937_64 random(7);
  for (const DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    const Kernel kernel = dtype == DataType::kFloat16 ? Kernel::kSumFloat16
                                                      : Kernel::kSumBfloat16;
    for (int piece_count = 1; piece_count <= 8; ++piece_count) {
      for (const size_t count :
           {size_t{1}, random() % 40, random() % 100, random() % 9000}) {
        const Bytes pieces =
            RandomElements(dtype, piece_count * count, random());
        const double scale = piece_count % 2 == 0 ? 1.0 : 1.0 / piece_count;
        std::vector<float> sum(count);
        for (int piece = 0; piece < piece_count; ++piece) {
          std::vector<float> wide(count);
          Widen(dtype, wide.data(), pieces.data() + piece * count * 2, 1,
                count);
          for (size_t i = 0; i < count; ++i) {
            sum[i] = piece == 0 ? wide[i] : sum[i] + wide[i];
          }
        }
        Bytes expected(count * 2);
        Narrow(dtype, expected.data(), sum.data(), scale, count);

        ExactMemory source(pieces, random() % 8 * 2);
        ExactMemory target(Bytes(count * 2), random() % 8 * 2);
        cuda::SumArguments arguments = {source.data(), target.data(), count,
                                        piece_count, static_cast<float>(scale)};
        RunLaunch(kernel, arguments, count * 2 / 4096 + 1);

        EXPECT_EQ(FirstDifference(dtype, expected, target.data()), "")
            << piece_count << " pieces of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace ring_keras::testing
