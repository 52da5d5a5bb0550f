#include "tf_ops/kernels/xla/handlers.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tf_ops/collectives/nccl/device_work.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/cuda/runtime_api.h"
#include "tf_ops/kernels/departures.h"
#include "tf_ops/kernels/drive_time.h"
#include "tf_ops/kernels/named_status.h"
#include "tf_ops/kernels/owned_copies.h"
#include "tf_ops/kernels/pieces.h"
#include "tf_ops/kernels/reduction_fault.h"
#include "tf_ops/kernels/xla/call_trace.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "tf_ops/kernels/xla/started_calls.h"
#include "tf_ops/runtime/departed_calls.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/runtime/submitted_call.h"
#include "xla/ffi/api/ffi.h"

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

// How many there are, without the token that JAX puts behind them: it orders
// the calls, and has no memory.
size_t CountOf(const ffi::RemainingArgs& operands) {
  const size_t count = operands.size();
  if (count == 0) return 0;
  auto last = operands.get<ffi::AnyBuffer>(count - 1);
  const bool is_token =
      last.has_value() && last->element_type() == ffi::DataType::TOKEN;
  return is_token ? count - 1 : count;
}

size_t CountOf(const ffi::RemainingRets& results) {
  const size_t count = results.size();
  if (count == 0) return 0;
  auto last = results.get<ffi::AnyBuffer>(count - 1);
  const bool is_token =
      last.has_value() && (*last)->element_type() == ffi::DataType::TOKEN;
  return is_token ? count - 1 : count;
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

struct GpuStream {
  int device;    // As CUDA numbers it.
  void* stream;  // A cudaStream_t.
};

// Where a call's buffers are: in host memory if it has no value.
using Place = std::optional<GpuStream>;

// Copies between memory at `place` and the host's, and returns when it has.
Status Copy(void* to, const void* from, size_t nbytes, const Place& place,
            int kind) {
  if (nbytes == 0) return Status::Ok();
  if (!place.has_value()) {
    std::memcpy(to, from, nbytes);
    return Status::Ok();
  }
  auto runtime = cuda::GetRuntime();
  RING_KERAS_RETURN_IF_ERROR(runtime.status());
  RING_KERAS_RETURN_IF_ERROR(cuda::ToStatus(
      runtime.value()->MemcpyAsync(to, from, nbytes, kind, place->stream),
      "copying"));
  return cuda::ToStatus(runtime.value()->StreamSynchronize(place->stream),
                        "copying");
}

// Numbers that only the running computation knows: all of `buffer`, as many as
// `values` holds. JAX has none of 64 bits unless it is asked for them.
Status Read(const ffi::AnyBuffer& buffer, const Place& place, double* values) {
  if (buffer.element_type() == ffi::DataType::F32) {
    std::vector<float> narrow(buffer.element_count());
    RING_KERAS_RETURN_IF_ERROR(Copy(narrow.data(), buffer.untyped_data(),
                                    buffer.size_bytes(), place,
                                    cuda::kMemcpyDeviceToHost));
    std::copy(narrow.begin(), narrow.end(), values);
    return Status::Ok();
  }
  return Copy(values, buffer.untyped_data(), buffer.size_bytes(), place,
              cuda::kMemcpyDeviceToHost);
}

// The pieces that the call's operands from `next` on have, and its results
// take.
Status AddPieces(const ffi::Dictionary& attributes,
                 const ffi::RemainingArgs& operands, size_t next,
                 const ffi::RemainingRets& results, Request* request) {
  const auto list = [&](const char* name) {
    const auto values = attributes.get<ffi::Span<const int64_t>>(name);
    return values.has_value()
               ? std::vector<int64_t>(values->begin(), values->end())
               : std::vector<int64_t>();
  };
  std::vector<Elements> own;
  for (; next < operands.size(); ++next) {
    const ffi::AnyBuffer operand = *operands.get<ffi::AnyBuffer>(next);
    request->dtype = ToDataType(operand.element_type());
    own.push_back({operand.untyped_data(),
                   static_cast<int64_t>(operand.element_count())});
  }
  std::vector<Elements> wholes;
  for (size_t i = 1; i < results.size(); ++i) {
    auto result = *results.get<ffi::AnyBuffer>(i);
    wholes.push_back({result->untyped_data(),
                      static_cast<int64_t>(result->element_count())});
  }
  return AddPieces({list(xla_calls::kEnds), list(xla_calls::kWholes),
                    list(xla_calls::kApart)},
                   own, wholes, request);
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
  if (auto roots =
          attributes.get<ffi::Span<const int64_t>>(xla_calls::kRoots)) {
    SetRoots({roots->begin(), roots->end()}, &request);
  }
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
  // The engine knows its own booleans.
  if (Integer(attributes, xla_calls::kIsBool, 0) != 0 &&
      (request.prescale != 1 || request.postscale != 1)) {
    request.able =
        Status(StatusCode::kInvalidArgument, ErrorCode::kNoSuchReduction,
               "bool cannot be scaled.");
  }
  const bool has_pieces =
      attributes.get<ffi::Span<const int64_t>>(xla_calls::kEnds).has_value();
  if (has_pieces) {
    request.able = AddPieces(attributes, operands, next, results, &request);
  }
  const size_t operand_count = has_pieces ? 0 : CountOf(operands);
  const size_t result_count = has_pieces ? 0 : CountOf(results);
  for (; next < operand_count; ++next) {
    const ffi::AnyBuffer operand = *operands.get<ffi::AnyBuffer>(next);
    request.dtype = ToDataType(operand.element_type());
    request.inputs.push_back({operand.untyped_data(), ShapeOf(operand)});
  }
  if (request.kind == CollectiveKind::kAllreduce ||
      request.kind == CollectiveKind::kBroadcast) {
    for (size_t i = 1; i < result_count; ++i) {
      auto output = *results.get<ffi::AnyBuffer>(i);
      request.outputs.push_back(output->untyped_data());
    }
  } else if (result_count > 1) {
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
ffi::Error Ended(const NamedStatus& status) {
  if (status.code == FrameworkCode::kOk) return ffi::Error::Success();
  StartedCalls::Get().Drain();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code), status.text);
}

ffi::Error Ended(const Status& status) { return Ended(Named(status)); }

// The two halves of an allreduce rely on XLA giving them the same memory.
Status OtherMemory(const std::string& what) {
  return Status(StatusCode::kInternal,
                StrCat("XLA gave ", what,
                       ", though the call says that they share it. The result "
                       "would be wrong. Turn jit_compile off, and report it."));
}

// Whether `buffer` is the memory at `data`; where there is none, it is.
bool IsAt(const ffi::AnyBuffer& buffer, const void* data) {
  return buffer.size_bytes() == 0 || buffer.untyped_data() == data;
}

ffi::Error Run(const Place& place, ffi::RemainingArgs operands,
               ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request = ToRequest(place, attributes, operands, results);
  const CallTrace trace("", &request);
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
  const CallTrace trace("start of ", &request);
  const int64_t number = Integer(attributes, xla_calls::kNumber, 0);
  if (!StartedCalls::Get().HasWait(number)) {
    return StartDropped(std::move(request), place);
  }
  const size_t first = CountOf(operands) - request.inputs.size();
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    if (!IsAt(*operands.get<ffi::AnyBuffer>(first + i), request.outputs[i])) {
      // The peers are told.
      request.able = OtherMemory(
          StrCat("operand ", i, " of the start of allreduce '", request.name,
                 "' and its result different memory"));
    }
  }
  auto token = *results.get<ffi::AnyBuffer>(0);
  const bool wait_follows = Integer(attributes, xla_calls::kWaitFollows, 0);
  StartedCall started;
  started.memory.assign(request.outputs.begin(), request.outputs.end());
  started.call =
      SubmittedCall::Submit(std::move(request), wait_follows ? kDriveForS : 0);
  StartedCalls::Get().Add(number, token->untyped_data(), std::move(started));
  return ffi::Error::Success();
}

ffi::Error Wait(const Place& place, ffi::RemainingArgs operands,
                ffi::RemainingRets, ffi::Dictionary attributes) {
  const CallTrace trace("wait for a collective", nullptr);
  const ffi::AnyBuffer token = *operands.get<ffi::AnyBuffer>(1);
  const StartedCall started = StartedCalls::Get().Take(
      Integer(attributes, xla_calls::kNumber, 0), token.untyped_data());
  if (started.call == nullptr) {
    return Ended(Status(StatusCode::kInternal,
                        "XLA ran the wait of an allreduce before its start."));
  }
  const Status status =
      started.call->Follow(place.has_value() ? place->stream : nullptr);
  if (!status.ok()) return Ended(status);
  for (size_t i = 0; i < started.memory.size(); ++i) {
    if (2 + i >= operands.size() ||
        !IsAt(*operands.get<ffi::AnyBuffer>(2 + i), started.memory[i])) {
      return Ended(OtherMemory(
          StrCat("the start and the wait of an allreduce different memory for "
                 "tensor ",
                 i)));
    }
  }
  return Ended(Status::Ok());
}

ffi::Error Depart(const Place& place, ffi::RemainingArgs operands,
                  ffi::RemainingRets results, ffi::Dictionary attributes) {
  Request request = ToRequest(place, attributes, operands, results);
  const CallTrace trace("departure of ", &request);
  request.device_work = nullptr;  // The copies are in host memory.
  DepartedCalls::Get().Put(
      Integer(attributes, xla_calls::kSlot, 0),
      DepartedCall::Submit(std::move(request),
                           [&place](void* to, const void* from, size_t nbytes) {
                             return Copy(to, from, nbytes, place,
                                         cuda::kMemcpyDeviceToHost);
                           }));
  return ffi::Error::Success();
}

ffi::Error Arrive(const Place& place, ffi::RemainingArgs,
                  ffi::RemainingRets results, ffi::Dictionary attributes) {
  const CallTrace trace("arrival of a collective", nullptr);
  const auto name = attributes.get<std::string_view>(xla_calls::kName);
  const std::string what(name.has_value() ? *name : "");
  const auto call =
      DepartedCalls::Get().Take(Integer(attributes, xla_calls::kSlot, 0));
  if (call == nullptr) return Ended(NothingDeparted(what));
  const Status status = call->Wait();
  if (!status.ok()) return Ended(status);
  const auto arrived = call->Results();
  if (arrived.size() + 1 != results.size()) return Ended(OtherResults(what));
  for (size_t i = 0; i < arrived.size(); ++i) {
    auto result = *results.get<ffi::AnyBuffer>(i + 1);
    if (arrived[i].nbytes != result->size_bytes()) {
      return Ended(OtherResults(what));
    }
    const Status copied =
        Copy(result->untyped_data(), arrived[i].data, arrived[i].nbytes, place,
             cuda::kMemcpyHostToDevice);
    if (!copied.ok()) return Ended(copied);
  }
  return Ended(Status::Ok());
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
  return Ended(fault.empty() ? NamedStatus() : CorruptData(fault));
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
  return call(GpuStream{device, stream}, operands, results, attributes);
}

#define RING_KERAS_HANDLERS(call)                               \
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
                             .Attrs<ffi::Dictionary>())

RING_KERAS_HANDLERS(Run);
RING_KERAS_HANDLERS(Start);
RING_KERAS_HANDLERS(Wait);
RING_KERAS_HANDLERS(Depart);
RING_KERAS_HANDLERS(Arrive);
RING_KERAS_HANDLERS(Check);

}  // namespace

const XlaHandler kXlaHandlers[kXlaHandlerCount] = {
    {xla_calls::kRun, "Host", kRunOnHost},
    {xla_calls::kRun, "CUDA", kRunOnGpu},
    {xla_calls::kStart, "Host", kStartOnHost},
    {xla_calls::kStart, "CUDA", kStartOnGpu},
    {xla_calls::kWait, "Host", kWaitOnHost},
    {xla_calls::kWait, "CUDA", kWaitOnGpu},
    {xla_calls::kDepart, "Host", kDepartOnHost},
    {xla_calls::kDepart, "CUDA", kDepartOnGpu},
    {xla_calls::kArrive, "Host", kArriveOnHost},
    {xla_calls::kArrive, "CUDA", kArriveOnGpu},
    {xla_calls::kCheck, "Host", kCheckOnHost},
    {xla_calls::kCheck, "CUDA", kCheckOnGpu},
};

}  // namespace ring_keras
