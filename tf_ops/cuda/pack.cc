#include "tf_ops/cuda/pack.h"

#include <algorithm>
#include <optional>

#include "tf_ops/cuda/device_arguments.h"
#include "tf_ops/cuda/device_module.h"
#include "tf_ops/cuda/driver_api.h"

namespace ring_keras::cuda {
namespace {

// Bytes on the wider side that a block takes.
constexpr uint64_t kTileNbytes =
    uint64_t{kThreads} * kGroupsPerThread * kGroupNbytes;

// A segment's count is a 32-bit number on the device: a longer one is cut, at a
// place that keeps the pieces as aligned as the whole.
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

std::optional<Kernel> CopyKernel(DataType from, DataType to, double scale) {
  if (from != to) return ConvertKernel(from, to);
  return scale == 1 ? Kernel::kCopy : ScaleKernel(from);
}

// `arguments` is the struct that the kernel takes.
template <typename Arguments>
Status Launch(const DriverApi& driver, FunctionHandle function,
              StreamHandle stream, unsigned blocks, Arguments& arguments) {
  void* parameters[] = {&arguments};
  return DriverStatus(driver.LaunchKernel(function, blocks, 1, 1, kThreads, 1,
                                          1, 0, stream, parameters, nullptr),
                      "launching device code");
}

constexpr uint64_t CeilingOfQuotient(uint64_t dividend, uint64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

// Gathers segments and launches the kernel when the arguments are full.
class CopyLauncher {
 public:
  // Sizes are of the kernel's elements.
  CopyLauncher(const DriverApi& driver, FunctionHandle function,
               StreamHandle stream, size_t from_size, size_t to_size,
               double scale)
      : driver_(driver),
        function_(function),
        stream_(stream),
        from_size_(from_size),
        to_size_(to_size) {
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

  Status Flush() {
    if (arguments_.segment_count == 0) return Status::Ok();
    const Status status =
        Launch(driver_, function_, stream_, tiles_, arguments_);
    arguments_.segment_count = 0;
    tiles_ = 0;
    return status;
  }

 private:
  Status AddPart(const void* from, void* to, uint64_t count) {
    const unsigned i = arguments_.segment_count++;
    tiles_ +=
        CeilingOfQuotient(count * std::max(from_size_, to_size_), kTileNbytes);
    arguments_.from[i] = from;
    arguments_.to[i] = to;
    arguments_.count[i] = count;
    arguments_.tiles_end[i] = tiles_;
    return i + 1 == kMaxSegments ? Flush() : Status::Ok();
  }

  const DriverApi& driver_;
  const FunctionHandle function_;
  const StreamHandle stream_;
  const size_t from_size_;
  const size_t to_size_;
  CopyArguments arguments_;
  unsigned tiles_ = 0;
};

}  // namespace

Status PrepareDevice(int device) {
  return GetKernel(device, Kernel::kCopy).status();
}

bool CanCopyScaled(DataType from, DataType to, double scale) {
  return CopyKernel(from, to, scale).has_value();
}

Status CopyScaled(int device, StreamHandle stream, DataType from, DataType to,
                  double scale, std::span<const Segment> segments) {
  const std::optional<Kernel> kernel = CopyKernel(from, to, scale);
  if (!kernel.has_value()) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("expected equal types, or float32 and a 16-bit float, "
               "to copy on a GPU, and bool only unscaled; got ",
               NameOf(from), " to ", NameOf(to), " scaled by ", scale, "."));
  }
  StatusOr<FunctionHandle> function = GetKernel(device, *kernel);
  if (!function.ok()) return function.status();
  // Bits are bits: plain copies are of bytes.
  const bool is_plain = *kernel == Kernel::kCopy;
  CopyLauncher launcher(*GetDriver().value(), function.value(), stream,
                        is_plain ? 1 : SizeOf(from), is_plain ? 1 : SizeOf(to),
                        scale);
  const uint64_t elements_each = is_plain ? SizeOf(from) : 1;
  for (const Segment& segment : segments) {
    RING_KERAS_RETURN_IF_ERROR(
        launcher.Add(segment.from, segment.to, segment.count * elements_each));
  }
  return launcher.Flush();
}

Status SumPieces(int device, StreamHandle stream, DataType dtype,
                 const void* pieces, int piece_count, uint64_t count,
                 double scale, void* sum) {
  if (dtype != DataType::kFloat16 && dtype != DataType::kBfloat16) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected pieces of float16 or bfloat16 to sum in "
                         "float32, got ",
                         NameOf(dtype), "."));
  }
  StatusOr<FunctionHandle> function =
      GetKernel(device, dtype == DataType::kFloat16 ? Kernel::kSumFloat16
                                                    : Kernel::kSumBfloat16);
  if (!function.ok()) return function.status();
  if (count == 0) return Status::Ok();
  SumArguments arguments;
  arguments.pieces = pieces;
  arguments.sum = sum;
  arguments.count = count;
  arguments.piece_count = piece_count;
  arguments.scale = static_cast<float>(scale);
  const uint64_t blocks = CeilingOfQuotient(count * SizeOf(dtype),
                                            uint64_t{kThreads} * kGroupNbytes);
  return Launch(*GetDriver().value(), function.value(), stream, blocks,
                arguments);
}

}  // namespace ring_keras::cuda
