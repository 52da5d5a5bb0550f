#include "tf_ops/cuda/pack.h"

#include <optional>

#include "tf_ops/cuda/copy_launches.h"
#include "tf_ops/cuda/device_arguments.h"
#include "tf_ops/cuda/device_module.h"
#include "tf_ops/cuda/driver_api.h"

namespace ring_keras::cuda {
namespace {

// `arguments` is the struct that the kernel takes.
template <typename Arguments>
Status Launch(FunctionHandle function, StreamHandle stream, unsigned blocks,
              Arguments& arguments) {
  void* parameters[] = {&arguments};
  return DriverStatus(
      GetDriver().value()->LaunchKernel(function, blocks, 1, 1, kThreads, 1, 1,
                                        0, stream, parameters, nullptr),
      "launching device code");
}

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
  return ForEachLaunch(*kernel, from, to, scale, segments,
                       [&](CopyArguments& arguments, unsigned blocks) {
                         return Launch(function.value(), stream, blocks,
                                       arguments);
                       });
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
  constexpr uint64_t kBlockNbytes = uint64_t{kThreads} * kGroupNbytes;
  const uint64_t blocks =
      (count * SizeOf(dtype) + kBlockNbytes - 1) / kBlockNbytes;
  return Launch(function.value(), stream, blocks, arguments);
}

}  // namespace ring_keras::cuda
