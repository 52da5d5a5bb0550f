#include "tf_ops/cuda/copy_launches.h"

#include <algorithm>

namespace ring_keras::cuda {
namespace {

// Bytes on the wider side that a block takes.
constexpr uint64_t kTileNbytes =
    uint64_t{kThreads} * kGroupsPerThread * kGroupNbytes;

// A segment's count is a 32-bit number on the device: a longer one is cut, at a
// place that leaves the parts as aligned as the whole.
constexpr uint64_t kMaxCount = uint64_t{1} << 31;

std::optional<Kernel> ScaleKernel(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return Kernel::kScaleUint8;
    case DataType::kInt8:
      return Kernel::kScaleInt8;
    case DataType::kUint16:
      return Kernel::kScaleUint16;
    case DataType::kInt16:
      return Kernel::kScaleInt16;
    case DataType::kInt32:
      return Kernel::kScaleInt32;
    case DataType::kInt64:
      return Kernel::kScaleInt64;
    case DataType::kFloat16:
      return Kernel::kScaleFloat16;
    case DataType::kBfloat16:
      return Kernel::kScaleBfloat16;
    case DataType::kFloat32:
      return Kernel::kScaleFloat32;
    case DataType::kFloat64:
      return Kernel::kScaleFloat64;
    case DataType::kBool:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Kernel> ConvertKernel(DataType from, DataType to) {
  if (from == DataType::kFloat32) {
    if (to == DataType::kFloat16) return Kernel::kNarrowToFloat16;
    if (to == DataType::kBfloat16) return Kernel::kNarrowToBfloat16;
  }
  if (to == DataType::kFloat32) {
    if (from == DataType::kFloat16) return Kernel::kWidenFloat16;
    if (from == DataType::kBfloat16) return Kernel::kWidenBfloat16;
  }
  return std::nullopt;
}

// Gathers segments until the arguments are full.
class Batch {
 public:
  // Sizes are of the kernel's elements.
  Batch(size_t from_size, size_t to_size, double scale,
        const LaunchCopy& launch)
      : from_size_(from_size), to_size_(to_size), launch_(launch) {
    arguments_.segment_count = 0;
    arguments_.scale = scale;
  }

  Status Add(const void* from, void* to, uint64_t count) {
    while (count > 0) {
      const uint64_t part = std::min(count, kMaxCount);
      RING_KERAS_RETURN_IF_ERROR(AddPart(from, to, part));
      from = static_cast<const char*>(from) + part * from_size_;
      to = static_cast<char*>(to) + part * to_size_;
      count -= part;
    }
    return Status::Ok();
  }

  Status Launch() {
    if (arguments_.segment_count == 0) return Status::Ok();
    const Status status = launch_(arguments_, tiles_);
    arguments_.segment_count = 0;
    tiles_ = 0;
    return status;
  }

 private:
  Status AddPart(const void* from, void* to, uint64_t count) {
    const unsigned i = arguments_.segment_count++;
    const uint64_t nbytes = count * std::max(from_size_, to_size_);
    tiles_ += (nbytes + kTileNbytes - 1) / kTileNbytes;
    arguments_.from[i] = from;
    arguments_.to[i] = to;
    arguments_.count[i] = count;
    arguments_.tiles_end[i] = tiles_;
    return i + 1 == kMaxSegments ? Launch() : Status::Ok();
  }

  const size_t from_size_;
  const size_t to_size_;
  const LaunchCopy& launch_;
  CopyArguments arguments_;
  unsigned tiles_ = 0;
};

}  // namespace

std::optional<Kernel> CopyKernel(DataType from, DataType to, double scale) {
  if (from != to) return ConvertKernel(from, to);
  return scale == 1 ? Kernel::kCopy : ScaleKernel(from);
}

Status ForEachLaunch(Kernel kernel, DataType from, DataType to, double scale,
                     std::span<const Segment> segments,
                     const LaunchCopy& launch) {
  // Bits are bits: the elements of plain copies are bytes.
  const bool is_plain = kernel == Kernel::kCopy;
  const uint64_t elements_each = is_plain ? SizeOf(from) : 1;
  Batch batch(is_plain ? 1 : SizeOf(from), is_plain ? 1 : SizeOf(to), scale,
              launch);
  for (const Segment& segment : segments) {
    RING_KERAS_RETURN_IF_ERROR(
        batch.Add(segment.from, segment.to, segment.count * elements_each));
  }
  return batch.Launch();
}

}  // namespace ring_keras::cuda
