#include "tf_ops/collectives/arguments.h"

#include <cmath>

#include "tf_ops/collectives/nccl/algorithms.h"
#include "tf_ops/reduce/reduce.h"

namespace ring_keras {
namespace {

Status ValidateReduction(const CollectiveArguments& arguments) {
  if (arguments.reduce_op == ReduceOp::kAverage &&
      !IsFloatingPoint(arguments.dtype)) {
    return Status(
        StatusCode::kInvalidArgument, ErrorCode::kIntegerAverage,
        StrCat("average needs a floating-point dtype, got ",
               NameOf(arguments.dtype), ". Sum, then divide, or cast first."));
  }
  if (!Supports(arguments.dtype, arguments.reduce_op)) {
    return Status(
        StatusCode::kInvalidArgument, ErrorCode::kNoSuchReduction,
        StrCat(NameOf(arguments.reduce_op), " of ", NameOf(arguments.dtype),
               " means nothing; bool takes min (and), max (or)."));
  }
  if (arguments.dtype == DataType::kBool &&
      (arguments.prescale != 1.0 || arguments.postscale != 1.0)) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kNoSuchReduction,
                  "bool cannot be scaled.");
  }
  if (!(arguments.weight >= 0 && std::isfinite(arguments.weight))) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("weight is ", arguments.weight,
                         ", expected a finite number that is not negative."));
  }
  return Status::Ok();
}

Status ValidateWire(const CollectiveArguments& arguments) {
  if (!arguments.wire_dtype.has_value()) return Status::Ok();
  const DataType wire = *arguments.wire_dtype;
  if (wire != DataType::kFloat16 && wire != DataType::kBfloat16) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadCompression,
                  StrCat("compression is to float16 or bfloat16, got ",
                         NameOf(wire), "."));
  }
  if (arguments.dtype == DataType::kFloat32) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, ErrorCode::kBadCompression,
                StrCat("compression to ", NameOf(wire), " takes float32, got ",
                       NameOf(arguments.dtype), ". Reduce it as it is."));
}

Status ValidateRoots(const CollectiveArguments& arguments, int size) {
  const size_t tensors = arguments.inputs.size();
  if (!arguments.roots.empty() && arguments.roots.size() != tensors) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("there are ", arguments.roots.size(), " roots for ",
                         tensors, " tensors, expected one for each."));
  }
  for (size_t i = 0; i < tensors; ++i) {
    const int root = RootOf(arguments, i);
    if (root >= 0 && root < size) continue;
    return Status(StatusCode::kInvalidArgument,
                  StrCat("root is ", root, ", expected a rank from 0 to ",
                         size - 1, "."));
  }
  return Status::Ok();
}

Status ValidateHasRows(const CollectiveArguments& arguments) {
  if (arguments.inputs[0].shape.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(NameOf(arguments.kind),
                         " divides the first dimension; a scalar has none. "
                         "Reshape it to [1] first."));
  }
  return Status::Ok();
}

Status ValidateSplits(const CollectiveArguments& arguments, int size) {
  const int64_t rows = arguments.inputs[0].shape[0];
  if (arguments.splits.empty()) {
    if (rows % size == 0) return Status::Ok();
    return Status(
        StatusCode::kInvalidArgument, ErrorCode::kBadSplits,
        StrCat("alltoall without splits needs a first dimension that "
               "the ",
               size, " ranks divide evenly, got ", rows, ". Pass splits."));
  }
  int64_t sum = 0;
  bool negative = false;
  for (int64_t split : arguments.splits) {
    sum += split;
    negative |= split < 0;
  }
  if (negative || sum != rows ||
      arguments.splits.size() != static_cast<size_t>(size)) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadSplits,
                  StrCat("alltoall needs ", size,
                         " splits, none negative, that sum to the first "
                         "dimension ",
                         rows, "; got ", DebugString(arguments.splits), "."));
  }
  return Status::Ok();
}

Status ValidateParts(const CollectiveArguments& arguments, int size) {
  int64_t sum = 0;
  bool negative = false;
  for (int64_t split : arguments.splits) {
    sum += split;
    negative |= split < 0;
  }
  const auto elements =
      static_cast<int64_t>(TotalBytes(arguments) / SizeOf(arguments.dtype));
  if (negative || sum != elements ||
      arguments.splits.size() != static_cast<size_t>(size)) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadSplits,
                  StrCat("reduce_scatter needs ", size,
                         " splits, none negative, that sum to the ", elements,
                         " elements of its tensors; got ",
                         DebugString(arguments.splits), "."));
  }
  if (arguments.device_work != nullptr) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadSplits,
                  "reduce_scatter with splits takes tensors in host memory.");
  }
  return Status::Ok();
}

}  // namespace

size_t TotalBytes(const CollectiveArguments& arguments) {
  size_t count = 0;
  for (const TensorView& input : arguments.inputs) {
    count += ElementCount(input.shape);
  }
  return count * SizeOf(arguments.dtype);
}

Status Validate(const CollectiveArguments& arguments, int size) {
  if (arguments.device_work != nullptr) {
    RING_KERAS_RETURN_IF_ERROR(nccl::Validate(arguments));
  }
  switch (arguments.kind) {
    case CollectiveKind::kAllreduce:
      RING_KERAS_RETURN_IF_ERROR(ValidateWire(arguments));
      return ValidateReduction(arguments);
    case CollectiveKind::kReduceScatter:
      if (arguments.wire_dtype.has_value()) {
        return Status(StatusCode::kInvalidArgument,
                      "reduce_scatter has no compression.");
      }
      RING_KERAS_RETURN_IF_ERROR(ValidateReduction(arguments));
      return arguments.splits.empty() ? ValidateHasRows(arguments)
                                      : ValidateParts(arguments, size);
    case CollectiveKind::kBroadcast:
      return ValidateRoots(arguments, size);
    case CollectiveKind::kAlltoall:
      RING_KERAS_RETURN_IF_ERROR(ValidateHasRows(arguments));
      return ValidateSplits(arguments, size);
    case CollectiveKind::kAllgather:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return Status::Ok();
  }
  return Status(StatusCode::kInternal, "unknown collective");
}

}  // namespace ring_keras
