// What XLA calls when a computation with our custom calls runs.
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/cuda/runtime_api.h"
#include "tf_ops/kernels/activity.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/device_stream.h"
#include "tf_ops/kernels/owned_copies.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/reduction_fault.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "tf_ops/kernels/xla/started_calls.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/submitted_call.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow has the function of this name, not the one that its C header
// declares; its own header of it comes with all of XLA's.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace ring_keras {
namespace {

namespace ffi = xla::ffi;
using tsl::profiler::TraceMe;

// Only types of RING_KERAS_DTYPES come here.
DataType ToDataType(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::U8:
      return DataType::kUint8;
    case ffi::DataType::S8:
      return DataType::kInt8;
    case ffi::DataType::U16:
      return DataType::kUint16;
    case ffi::DataType::S16:
      return DataType::kInt16;
    case ffi::DataType::S32:
      return DataType::kInt32;
    case ffi::DataType::S64:
      return DataType::kInt64;
    case ffi::DataType::F16:
      return DataType::kFloat16;
    case ffi::DataType::BF16:
      return DataType::kBfloat16;
    case ffi::DataType::F64:
      return DataType::kFloat64;
    case ffi::DataType::PRED:
      return DataType::kBool;
    default:
      return DataType::kFloat32;
  }
}

Shape ShapeOf(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return Shape(dimensions.begin(), dimensions.end());
}

int64_t Integer(const ffi::Dictionary& attributes, const char* name,
                int64_t otherwise) {
  const auto value = attributes.get<int64_t>(name);
  return value.has_value() ? *value : otherwise;
}

// Where a call's buffers are: in host memory if it has no value.
using Place = std::optional<DeviceStream>;

// Numbers that only the running computation knows: all of `buffer`, as many as
// `values` holds.
Status Read(const ffi::AnyBuffer& buffer, const Place& place, double* values) {
  if (!place.has_value()) {
    std::memcpy(values, buffer.untyped_data(), buffer.size_bytes());
    return Status::Ok();
  }
  auto runtime = cuda::GetRuntime();
  RING_KERAS_RETURN_IF_ERROR(runtime.status());
  RING_KERAS_RETURN_IF_ERROR(cuda::ToStatus(
      runtime.value()->MemcpyAsync(values, buffer.untyped_data(),
                                   buffer.size_bytes(),
                                   cuda::kMemcpyDeviceToHost, place->stream),
      "reading numbers"));
  return cuda::ToStatus(runtime.value()->StreamSynchronize(place->stream),
                        "reading numbers");
}

// The request that a call's attributes, operands and results describe. What
// fails is told to the peers, which wait for this rank.
Request ToRequest(const Place& place, const ffi::Dictionary& attributes,
                  const ffi::RemainingArgs& operands,
                  const ffi::RemainingRets& results) {
  Request request;
  request.kind =
      static_cast<CollectiveKind>(Integer(attributes, xla_calls::kKind, 0));
  if (auto name = attributes.get<std::string_view>(xla_calls::kName)) {
    request.name = std::string(*name);
  }
  request.communicator_id = Integer(attributes, xla_calls::kCommunicator, 0);
  request.reduce_op =
      static_cast<ReduceOp>(Integer(attributes, xla_calls::kReduceOp, 0));
  request.step_role =
      static_cast<StepRole>(Integer(attributes, xla_calls::kStep, 0));
  request.plan = Integer(attributes, xla_calls::kPlan, 0);
  request.root = Integer(attributes, xla_calls::kRoot, 0);
  const int64_t wire_dtype = Integer(attributes, xla_calls::kWireDtype, -1);
  if (wire_dtype >= 0) request.wire_dtype = static_cast<DataType>(wire_dtype);

  size_t next = 1;  // Past the token.
  double* const factors[] = {&request.prescale, &request.postscale,
                             &request.weight};
  for (size_t i = 0; i < std::size(factors); ++i) {
    const std::string name = xla_calls::kFactors[i];
    if (Integer(attributes, (name + xla_calls::kOperandSuffix).c_str(), 0)) {
      const Status read =
          Read(*operands.get<ffi::AnyBuffer>(next++), place, factors[i]);
      if (!read.ok()) request.able = read;
    } else if (const auto value = attributes.get<double>(name)) {
      *factors[i] = *value;
    }
  }
  for (; next < operands.size(); ++next) {
    const ffi::AnyBuffer operand = *operands.get<ffi::AnyBuffer>(next);
    request.dtype = ToDataType(operand.element_type());
    request.inputs.push_back({operand.untyped_data(), ShapeOf(operand)});
  }
  if (request.kind == CollectiveKind::kAllreduce ||
      request.kind == CollectiveKind::kBroadcast) {
    for (size_t i = 1; i < results.size(); ++i) {
      auto output = *results.get<ffi::AnyBuffer>(i);
      request.outputs.push_back(output->untyped_data());
    }
  } else if (results.size() > 1) {
    request.even_rows = true;
    auto output = *results.get<ffi::AnyBuffer>(1);
    request.allocate_output =
        [memory = output->untyped_data()](const Shape&) -> StatusOr<void*> {
      return memory;
    };
  }
  if (place.has_value() && !request.inputs.empty()) {
    auto work = DeviceWork::After(place->device, place->stream);
    if (work.ok()) {
      request.device_work = std::move(work.value());
    } else {
      request.able = work.status();
    }
  }
  return request;
}

// The end of a call. A run that fails first lets its other collectives end: its
// memory ends with it.
ffi::Error Ended(const absl::Status& status) {
  if (status.ok()) return ffi::Error::Success();
  StartedCalls::Get().Drain();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code()),
                    std::string(status.message()));
}

ffi::Error Ended(const Status& status) { return Ended(ToTensorFlow(status)); }

ffi::Error Run(const Place& place, ffi::RemainingArgs operands,
               ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request = ToRequest(place, attributes, operands, results);
  const TraceMe trace([&] { return Activity(request); });
  if (request.device_work == nullptr) {
    return Ended(Runtime::Get().Run(std::move(request)));
  }
  const auto call = SubmittedCall::Submit(std::move(request));
  return Ended(call->Follow(place->stream));
}

// One without a wait: the run may end before it does.
ffi::Error StartDropped(Request request, const Place& place) {
  if (request.device_work == nullptr) {
    StatusOr<DoneCallback> owner = OwnCopies(&request);
    DoneCallback done = [](const Status&) {};
    if (owner.ok()) {
      done = std::move(owner.value());
    } else {
      Log(LogLevel::kWarning,
          StrCat("allreduce '", request.name, "': ", owner.status().message()));
      request.able = owner.status();  // The peers wait for this rank.
    }
    Runtime::Get().Submit(std::move(request), std::move(done));
    return ffi::Error::Success();
  }
  // A GPU's memory is used again in the order of the stream.
  (void)SubmittedCall::Submit(std::move(request))->Follow(place->stream);
  return ffi::Error::Success();
}

ffi::Error Start(const Place& place, ffi::RemainingArgs operands,
                 ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request = ToRequest(place, attributes, operands, results);
  const TraceMe trace([&] { return "start of " + Activity(request); });
  const int64_t number = Integer(attributes, xla_calls::kNumber, 0);
  if (!StartedCalls::Get().HasWait(number)) {
    return StartDropped(std::move(request), place);
  }
  auto token = *results.get<ffi::AnyBuffer>(0);
  const bool wait_follows = Integer(attributes, xla_calls::kWaitFollows, 0);
  StartedCalls::Get().Add(
      number, token->untyped_data(),
      SubmittedCall::Submit(std::move(request), wait_follows ? kDriveForS : 0));
  return ffi::Error::Success();
}

ffi::Error Wait(const Place& place, ffi::RemainingArgs operands,
                ffi::RemainingRets, ffi::Dictionary attributes) {
  const TraceMe trace("wait for a collective");
  const ffi::AnyBuffer token = *operands.get<ffi::AnyBuffer>(1);
  const auto call = StartedCalls::Get().Take(
      Integer(attributes, xla_calls::kNumber, 0), token.untyped_data());
  if (call == nullptr) {
    return Ended(Status(StatusCode::kInternal,
                        "XLA ran the wait of an allreduce before its start."));
  }
  return Ended(call->Follow(place.has_value() ? place->stream : nullptr));
}

ffi::Error Check(const Place& place, ffi::RemainingArgs operands,
                 ffi::RemainingRets, ffi::Dictionary attributes) {
  std::vector<double> matrices[2];
  for (int i = 0; i < 2; ++i) {
    const ffi::AnyBuffer matrix = *operands.get<ffi::AnyBuffer>(1 + i);
    matrices[i].resize(matrix.element_count());
    const Status read = Read(matrix, place, matrices[i].data());
    if (!read.ok()) return Ended(read);
  }
  const auto& [bits, sums] = matrices;
  const int64_t tensors = operands.size() - 3;
  const auto names = attributes.get<std::string_view>(xla_calls::kNames);
  const std::string fault = ReductionFault(
      {bits.data(), static_cast<int64_t>(bits.size()) / (tensors + 1), tensors,
       sums.data(), static_cast<int64_t>(sums.size()) / 4},
      std::string(names.has_value() ? *names : ""));
  return Ended(fault.empty() ? absl::OkStatus() : CorruptData(fault));
}

using Call = ffi::Error(const Place& place, ffi::RemainingArgs operands,
                        ffi::RemainingRets results, ffi::Dictionary attributes);

template <Call* call>
ffi::Error OnHost(ffi::RemainingArgs operands, ffi::RemainingRets results,
                  ffi::Dictionary attributes) {
  return call(std::nullopt, operands, results, attributes);
}

template <Call* call>
ffi::Error OnGpu(void* stream, int32_t device, ffi::RemainingArgs operands,
                 ffi::RemainingRets results, ffi::Dictionary attributes) {
  return call(DeviceStream{device, stream}, operands, results, attributes);
}

#define RING_KERAS_HANDLERS(target, call)                       \
  XLA_FFI_DEFINE_HANDLER(k##call##OnHost, OnHost<call>,         \
                         ffi::Ffi::Bind()                       \
                             .RemainingArgs()                   \
                             .RemainingRets()                   \
                             .Attrs<ffi::Dictionary>());        \
  XLA_FFI_DEFINE_HANDLER(k##call##OnGpu, OnGpu<call>,           \
                         ffi::Ffi::Bind()                       \
                             .Ctx<ffi::PlatformStream<void*>>() \
                             .Ctx<ffi::DeviceOrdinal>()         \
                             .RemainingArgs()                   \
                             .RemainingRets()                   \
                             .Attrs<ffi::Dictionary>());        \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), target, "Host", \
                           k##call##OnHost);                    \
  XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), target, "CUDA", k##call##OnGpu)

RING_KERAS_HANDLERS(xla_calls::kRun, Run);
RING_KERAS_HANDLERS(xla_calls::kStart, Start);
RING_KERAS_HANDLERS(xla_calls::kWait, Wait);
RING_KERAS_HANDLERS(xla_calls::kCheck, Check);

}  // namespace
}  // namespace ring_keras
