// What XLA calls when a computation with our custom calls runs.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "tf_ops/kernels/xla/started_calls.h"
#include "tf_ops/runtime/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// TensorFlow has the function of this name, not the one that its C header
// declares; its own header of it comes with all of XLA's.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace ring_keras {
namespace {

namespace ffi = xla::ffi;

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

// The request that a call's attributes, operands and results describe.
Request ToRequest(const ffi::Dictionary& attributes,
                  const ffi::RemainingArgs& operands,
                  const ffi::RemainingRets& results) {
  Request request;
  request.kind = static_cast<CollectiveKind>(
      Integer(attributes, xla_calls::kKind, 0));
  if (auto name = attributes.get<std::string_view>(xla_calls::kName)) {
    request.name = std::string(*name);
  }
  request.communicator_id = Integer(attributes, xla_calls::kCommunicator, 0);
  request.reduce_op =
      static_cast<ReduceOp>(Integer(attributes, xla_calls::kReduceOp, 0));
  request.root = Integer(attributes, xla_calls::kRoot, 0);
  const int64_t wire_dtype = Integer(attributes, xla_calls::kWireDtype, -1);
  if (wire_dtype >= 0) request.wire_dtype = static_cast<DataType>(wire_dtype);

  size_t next = 1;  // Past the token.
  double* const factors[] = {&request.prescale, &request.postscale,
                             &request.weight};
  for (size_t i = 0; i < std::size(factors); ++i) {
    const std::string name = xla_calls::kFactors[i];
    if (Integer(attributes, (name + xla_calls::kOperandSuffix).c_str(), 0)) {
      *factors[i] = *operands.get<ffi::AnyBuffer>(next++)->typed_data<double>();
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
    request.allocate_output = [memory = output->untyped_data()](
                                  const Shape&) -> StatusOr<void*> {
      return memory;
    };
  }
  return request;
}

ffi::Error ToXla(const Status& status) {
  const absl::Status error = ToTensorFlow(status);
  if (error.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(error.code()),
                    std::string(error.message()));
}

// The end of a call: a run that fails first lets its other collectives end.
ffi::Error Ended(int64_t run, const Status& status) {
  if (!status.ok()) StartedCalls::Get().Drain(run);
  return ToXla(status);
}

ffi::Error RunOnHost(ffi::RunId run, ffi::RemainingArgs operands,
                     ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request = ToRequest(attributes, operands, results);
  return Ended(run.run_id, Runtime::Get().Run(std::move(request)));
}

ffi::Error StartOnHost(ffi::RunId run, ffi::RemainingArgs operands,
                       ffi::RemainingRets results,
                       ffi::Dictionary attributes) {
  const bool wait_follows = Integer(attributes, xla_calls::kWaitFollows, 0);
  StartedCalls::Get().Add(
      run.run_id, Integer(attributes, xla_calls::kNumber, 0),
      CallInFlight::Submit(ToRequest(attributes, operands, results),
                           wait_follows ? kPatienceS : 0));
  return ffi::Error::Success();
}

ffi::Error WaitOnHost(ffi::RunId run, ffi::RemainingArgs, ffi::RemainingRets,
                      ffi::Dictionary attributes) {
  const auto call = StartedCalls::Get().Take(
      run.run_id, Integer(attributes, xla_calls::kNumber, 0));
  if (call == nullptr) {
    return ffi::Error::Internal(
        "RingKerasError: XLA ran the wait of an allreduce without its start.");
  }
  return Ended(run.run_id, call->Await());
}

#define RING_KERAS_HANDLER(handler, function)                       \
  XLA_FFI_DEFINE_HANDLER(handler, function,                         \
                         ffi::Ffi::Bind()                           \
                             .Ctx<ffi::RunId>()                     \
                             .RemainingArgs()                       \
                             .RemainingRets()                       \
                             .Attrs<ffi::Dictionary>());

RING_KERAS_HANDLER(kRunOnHost, RunOnHost)
RING_KERAS_HANDLER(kStartOnHost, StartOnHost)
RING_KERAS_HANDLER(kWaitOnHost, WaitOnHost)

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), xla_calls::kRun, "Host",
                         kRunOnHost);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), xla_calls::kStart, "Host",
                         kStartOnHost);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), xla_calls::kWait, "Host",
                         kWaitOnHost);

}  // namespace
}  // namespace ring_keras
