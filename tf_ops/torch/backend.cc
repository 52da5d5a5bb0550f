#include "tf_ops/torch/backend.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "tf_ops/common/collective_kind.h"
#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/call.h"
#include "tf_ops/torch/reductions.h"
#include "tf_ops/torch/streams.h"

namespace ring_keras::torch_backend {
namespace {

using c10d::OpType;

// By which the ranks meet.
constexpr char kBroadcast[] = "torch/broadcast";
constexpr char kAllreduce[] = "torch/allreduce";
constexpr char kAllgather[] = "torch/allgather";
constexpr char kReduceScatter[] = "torch/reduce_scatter";
constexpr char kAlltoall[] = "torch/alltoall";
constexpr char kBarrier[] = "torch/barrier";

// Between two looks at whether devices have ended what they have.
constexpr std::chrono::milliseconds kShutdownInterval{1};

void CheckRoot(int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size,
                    "expected a rank of the group, from 0 to ", size - 1,
                    ", got ", root);
}

// By rank: how many elements of a tensor are for it, or come from it, whose
// rows are divided so; if nothing is said, evenly.
std::vector<int64_t> ElementsByRank(const at::Tensor& tensor,
                                    std::vector<int64_t> rows, int size) {
  if (rows.empty()) rows.assign(size, tensor.size(0) / size);
  const int64_t row = c10::multiply_integers(tensor.sizes().slice(1));
  for (int64_t& count : rows) count *= row;
  return rows;
}

// The memory of `output`, which the call keeps. If other ranks have sent
// something else it comes elsewhere, so that only this rank's call fails.
OutputAllocator Into(const at::Tensor& output, DataType dtype) {
  return
      [memory = output.mutable_data_ptr(), size = output.nbytes(),
       device = output.device(), dtype,
       stream = output.is_cuda()
                    ? std::optional<c10::Stream>(CurrentStream(output.device()))
                    : std::nullopt,
       spare = std::make_shared<at::Tensor>()](
          const Shape& shape) -> StatusOr<void*> {
        const size_t nbytes = ElementCount(shape) * SizeOf(dtype);
        if (nbytes == size) return memory;
        try {
          // The engine takes account of what the caller's stream does with it.
          const c10::OptionalStreamGuard guard(stream);
          *spare = at::empty({static_cast<int64_t>(nbytes)},
                             at::TensorOptions(device).dtype(at::kByte));
        } catch (const c10::Error& problem) {
          return Status(StatusCode::kResourceExhausted,
                        problem.what_without_backtrace());
        }
        return spare->mutable_data_ptr();
      };
}

}  // namespace

RingBackend::RingBackend(int rank, std::vector<int> ranks, int communicator_id,
                         int pairs, RollCall roll_call,
                         std::chrono::milliseconds timeout,
                         std::chrono::milliseconds engine_timeout)
    : Backend(rank, static_cast<int>(ranks.size())),
      ranks_(std::move(ranks)),
      everyone_(communicator_id),
      pairs_(pairs),
      roll_call_(std::move(roll_call)),
      timeout_(timeout),
      engine_timeout_(engine_timeout) {}

std::vector<RingBackend::Meeting> RingBackend::Meetings() {
  std::vector<Meeting> meetings{everyone_};
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [place, meeting] : made_) meetings.push_back(meeting);
  return meetings;
}

// The streams have been told to go on after what a device has: should that be
// interrupted, or the process end, this rank or another would go on with half a
// result.
void RingBackend::shutdown() {
  const auto until = std::chrono::steady_clock::now() + timeout_;
  for (const Meeting& meeting : Meetings()) {
    while (meeting.under_way->on_device > 0 &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kShutdownInterval);
    }
  }
  abort();
}

void RingBackend::abort() {
  decltype(any_receives_) any_receives;
  {
    std::lock_guard<std::mutex> lock(receiving_);
    any_receives.swap(any_receives_);
  }
  for (const auto& [tag, receives] : any_receives) {
    for (const auto& receive : receives) {
      receive->GiveUp("recv() from any rank was pending when its group ended.");
    }
  }
  for (const Meeting& meeting : Meetings()) {
    if (meeting.under_way->requests > 0) {
      Runtime::Get().Interrupt(meeting.communicator_id);
    }
  }
}

void TellOthers(CollectiveKind kind, const std::string& name,
                int communicator_id, const std::string& why, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Request request;
    request.kind = kind;
    request.name = name;
    request.communicator_id = communicator_id;
    request.able = Status(StatusCode::kInvalidArgument, why);
    Runtime::Get().Submit(std::move(request), [](const Status&) {});
  }
}

template <typename Body>
RingBackend::WorkPtr RingBackend::Told(CollectiveKind kind, const char* name,
                                       size_t count, Body body) {
  try {
    return body();
  } catch (const c10::Error& problem) {
    TellOthers(kind, name, everyone_.communicator_id,
               problem.what_without_backtrace(), count);
    throw;
  }
}

template <typename Body>
RingBackend::WorkPtr RingBackend::ToldOfReduction(const c10d::ReduceOp& op,
                                                  size_t tensors, Body body) {
  if (IsOfBits(op))
    return Told(CollectiveKind::kAllgather, kAllgather, tensors, body);
  return Told(CollectiveKind::kAllreduce, kAllreduce, 1, body);
}

RingBackend::WorkPtr RingBackend::broadcast(
    Tensors& tensors, const c10d::BroadcastOptions& options) {
  return Told(CollectiveKind::kBroadcast, kBroadcast, 1, [&] {
    CheckTensors(tensors);
    CheckRoot(options.rootRank, getSize());
    Call call(*this, OpType::BROADCAST, "ring:broadcast", options, tensors);
    const Moved moved = MovedAs(tensors[0]);
    Request& request =
        call.Add(CollectiveKind::kBroadcast, kBroadcast, tensors[0]);
    request.dtype = moved.dtype;
    request.root = static_cast<int>(options.rootRank);
    for (const at::Tensor& tensor : tensors) {
      const bool is_root = options.rootRank == getRank();
      const at::Tensor flat =
          is_root ? tensor.contiguous() : call.InPlace(tensor);
      call.Keep(flat);
      request.inputs.push_back(
          ViewOf(flat, {flat.numel() * moved.per_element}));
      request.outputs.push_back(flat.mutable_data_ptr());
    }
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::AllreduceInto(const Tensors& tensors,
                                                const Tensors& outputs,
                                                const c10d::ReduceOp& op,
                                                Call call) {
  CheckReduction(op, tensors[0]);
  const Reduction reduction = ReductionOf(op, tensors[0]);
  Request& request =
      call.Add(CollectiveKind::kAllreduce, kAllreduce, tensors[0]);
  request.dtype = ReducedAs(tensors[0]);
  request.reduce_op = reduction.op;
  request.prescale = reduction.factor;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool in_place = outputs[i].is_same(tensors[i]);
    const at::Tensor input =
        AsReal(in_place ? call.InPlace(tensors[i]) : tensors[i].contiguous());
    const at::Tensor output = in_place ? input : AsReal(outputs[i]);
    call.Keep(input);
    call.Keep(output);
    request.inputs.push_back(ViewOf(input, {input.numel()}));
    request.outputs.push_back(output.mutable_data_ptr());
  }
  return call.Submit();
}

RingBackend::WorkPtr RingBackend::AllreduceByBits(const Tensors& tensors,
                                                  const c10d::ReduceOp& op,
                                                  Call call) {
  TORCH_CHECK_TYPE(
      at::isIntegralType(tensors[0].scalar_type(), /*includeBool=*/true),
      "[RK142] BAND, BOR and BXOR are of whole numbers, got ",
      tensors[0].scalar_type());
  Tensors gathered;
  for (const at::Tensor& tensor : tensors) {
    call.Keep(tensor);
    gathered.push_back(
        at::empty({getSize(), tensor.numel()}, tensor.options()));
    AddAllgather(call, gathered.back(), tensor);
  }
  call.Finally([tensors, gathered, op] {
    for (size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor bits = gathered[i][0];
      for (int64_t rank = 1; rank < gathered[i].size(0); ++rank) {
        bits = CombinedBits(bits, gathered[i][rank], op);
      }
      tensors[i].copy_(bits.view(tensors[i].sizes()));
    }
  });
  return call.Submit();
}

RingBackend::WorkPtr RingBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  return ToldOfReduction(options.reduceOp, tensors.size(), [&] {
    CheckTensors(tensors);
    TORCH_CHECK_VALUE(!options.sparseIndices.has_value(),
                      "[RK142] the back end ring reduces no sparse tensors");
    Call call(*this, OpType::ALLREDUCE, "ring:all_reduce", options, tensors);
    if (IsOfBits(options.reduceOp)) {
      return AllreduceByBits(tensors, options.reduceOp, std::move(call));
    }
    return AllreduceInto(tensors, tensors, options.reduceOp, std::move(call));
  });
}

RingBackend::WorkPtr RingBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

RingBackend::WorkPtr RingBackend::reduce(Tensors& tensors,
                                         const c10d::ReduceOptions& options) {
  return ToldOfReduction(options.reduceOp, tensors.size(), [&] {
    CheckTensors(tensors);
    CheckRoot(options.rootRank, getSize());
    Call call(*this, OpType::REDUCE, "ring:reduce", options, tensors);
    // The others' tensors stay as they are.
    Tensors outputs = tensors;
    if (options.rootRank != getRank()) {
      for (at::Tensor& output : outputs) {
        output = at::empty(output.sizes(), output.options());
      }
    }
    if (!IsOfBits(options.reduceOp)) {
      return AllreduceInto(tensors, outputs, options.reduceOp, std::move(call));
    }
    if (options.rootRank != getRank()) {
      for (size_t i = 0; i < tensors.size(); ++i) outputs[i].copy_(tensors[i]);
    }
    return AllreduceByBits(outputs, options.reduceOp, std::move(call));
  });
}

void RingBackend::AddAllgather(Call& call, const at::Tensor& output,
                               const at::Tensor& input) {
  const Moved moved = MovedAs(input);
  const at::Tensor flat = input.contiguous();
  const at::Tensor target = call.InPlace(output);
  call.Keep(flat);
  call.Keep(target);
  Request& request = call.Add(CollectiveKind::kAllgather, kAllgather, input);
  request.dtype = moved.dtype;
  request.even_rows = true;
  request.inputs = {ViewOf(flat, {flat.numel() * moved.per_element})};
  request.allocate_output = Into(target, moved.dtype);
}

RingBackend::WorkPtr RingBackend::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return AllgatherEach(inputs, options, [&] { return outputs; });
}

// Its lists of outputs are those of a rank; those of allgather(), of an input.
RingBackend::WorkPtr RingBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return AllgatherEach(inputs, options, [&] {
    TORCH_CHECK_VALUE(
        static_cast<int>(outputs.size()) == getSize(), "expected ", getSize(),
        " lists of outputs, one for each rank, got ", outputs.size());
    std::vector<Tensors> of_inputs(inputs.size());
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "expected ",
                        inputs.size(), " outputs for each rank, got ",
                        of_rank.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        of_inputs[i].push_back(of_rank[i]);
      }
    }
    return of_inputs;
  });
}

template <typename Outputs>
RingBackend::WorkPtr RingBackend::AllgatherEach(
    const Tensors& inputs, const c10d::AllgatherOptions& options,
    Outputs outputs_of_inputs) {
  return Told(CollectiveKind::kAllgather, kAllgather, inputs.size(), [&] {
    CheckTensors(inputs);
    const std::vector<Tensors> outputs = outputs_of_inputs();
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected ",
                      inputs.size(), " lists of outputs, got ", outputs.size());
    Tensors all;
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckTensors(outputs[i]);
      CheckTensors({inputs[i], outputs[i][0]});
      TORCH_CHECK_VALUE(static_cast<int>(outputs[i].size()) == getSize(),
                        "expected ", getSize(),
                        " outputs, one for each rank, got ", outputs[i].size());
      for (const at::Tensor& output : outputs[i]) {
        TORCH_CHECK_VALUE(
            output.numel() == inputs[i].numel(),
            "expected outputs of as many elements as the input's ",
            inputs[i].numel(), ", got ", output.numel());
      }
      all.insert(all.end(), outputs[i].begin(), outputs[i].end());
    }
    Call call(*this, OpType::ALLGATHER, "ring:all_gather", options, all);
    Tensors gathered;
    for (size_t i = 0; i < inputs.size(); ++i) {
      gathered.push_back(
          at::empty({ElementsOf(outputs[i])}, inputs[i].options()));
      AddAllgather(call, gathered.back(), inputs[i]);
    }
    call.Finally([gathered, outputs] {
      for (size_t i = 0; i < gathered.size(); ++i)
        Distribute(gathered[i], outputs[i]);
    });
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

RingBackend::WorkPtr RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return Told(CollectiveKind::kAllgather, kAllgather, inputs.size(), [&] {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                      "expected ", inputs.size(), " outputs, got ",
                      outputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckTensors({inputs[i], outputs[i]});
      TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * getSize(),
                        "expected an output of ", inputs[i].numel() * getSize(),
                        " elements, ", getSize(),
                        " times those of the input, got ", outputs[i].numel());
    }
    Call call(*this, OpType::_ALLGATHER_BASE, "ring:all_gather_into_tensor",
              options, outputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      AddAllgather(call, outputs[i], inputs[i]);
    }
    return call.Submit();
  });
}

void RingBackend::AddReduceScatter(Call& call, const at::Tensor& output,
                                   const at::Tensor& input,
                                   const c10d::ReduceOp& op) {
  CheckReduction(op, input);
  const Reduction reduction = ReductionOf(op, input);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                    "expected an input of ", output.numel() * getSize(),
                    " elements, ", getSize(),
                    " times those of the output, got ", input.numel());
  const at::Tensor flat = AsReal(input.contiguous());
  const at::Tensor target = AsReal(call.InPlace(output));
  call.Keep(flat);
  call.Keep(target);
  Request& request =
      call.Add(CollectiveKind::kReduceScatter, kReduceScatter, input);
  request.dtype = ReducedAs(input);
  request.reduce_op = reduction.op;
  request.prescale = reduction.factor;
  request.inputs = {ViewOf(flat, {getSize(), target.numel()})};
  request.allocate_output = Into(target, request.dtype);
}

RingBackend::WorkPtr RingBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  return Told(CollectiveKind::kReduceScatter, kReduceScatter, outputs.size(),
              [&] {
                CheckTensors(outputs);
                TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "expected ",
                                  outputs.size(), " lists of inputs, got ",
                                  inputs.size());
                Call call(*this, OpType::REDUCE_SCATTER, "ring:reduce_scatter",
                          options, outputs);
                for (size_t i = 0; i < outputs.size(); ++i) {
                  CheckTensors(inputs[i]);
                  CheckTensors({outputs[i], inputs[i][0]});
                  for (const at::Tensor& input : inputs[i]) {
                    TORCH_CHECK_VALUE(
                        input.numel() == outputs[i].numel(),
                        "expected inputs of as many elements as the output's ",
                        outputs[i].numel(), ", got ", input.numel());
                  }
                  AddReduceScatter(call, outputs[i], Concatenated(inputs[i]),
                                   options.reduceOp);
                }
                return call.Submit();
              });
}

RingBackend::WorkPtr RingBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

RingBackend::WorkPtr RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return Told(
      CollectiveKind::kReduceScatter, kReduceScatter, outputs.size(), [&] {
        TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                          "expected ", outputs.size(), " inputs, got ",
                          inputs.size());
        Call call(*this, OpType::_REDUCE_SCATTER_BASE,
                  "ring:reduce_scatter_tensor", options, outputs);
        for (size_t i = 0; i < inputs.size(); ++i) {
          CheckTensors({inputs[i], outputs[i]});
          AddReduceScatter(call, outputs[i], inputs[i], options.reduceOp);
        }
        return call.Submit();
      });
}

void RingBackend::AddAlltoall(Call& call, const at::Tensor& output,
                              const at::Tensor& input,
                              std::vector<int64_t> splits,
                              std::vector<int64_t> expected,
                              std::function<void()> then) {
  const Moved moved = MovedAs(input);
  call.Keep(input);
  call.Keep(output);
  Request& request = call.Add(CollectiveKind::kAlltoall, kAlltoall, input);
  const auto received = std::make_shared<std::vector<int64_t>>();
  request.received_splits = received.get();
  call.Finally(
      [received, expected = std::move(expected), then = std::move(then)] {
        TORCH_CHECK_VALUE(
            *received == expected, "[RK145] expected ", expected,
            " elements from the ranks, as the outputs say, but they have sent ",
            *received);
        if (then) then();
      });
  request.dtype = moved.dtype;
  const int64_t elements =
      std::accumulate(splits.begin(), splits.end(), int64_t{0});
  request.inputs = {ViewOf(input, {elements, moved.per_element})};
  request.splits = std::move(splits);
  request.allocate_output = Into(output, moved.dtype);
}

RingBackend::WorkPtr RingBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return Told(CollectiveKind::kAlltoall, kAlltoall, 1, [&] {
    CheckTensors({input, output});
    TORCH_CHECK_VALUE(input.dim() > 0 && output.dim() > 0,
                      "expected tensors with rows, got a scalar");
    c10d::checkSplitSizes(input_splits, input, getSize());
    c10d::checkSplitSizes(output_splits, output, getSize());
    Call call(*this, OpType::ALLTOALL_BASE, "ring:all_to_all", options,
              {output});
    AddAlltoall(call, call.InPlace(output), input.contiguous(),
                ElementsByRank(input, input_splits, getSize()),
                ElementsByRank(output, output_splits, getSize()), nullptr);
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return Told(CollectiveKind::kAlltoall, kAlltoall, 1, [&] {
    CheckTensors(inputs);
    CheckTensors(outputs);
    CheckTensors({inputs[0], outputs[0]});
    TORCH_CHECK_VALUE(static_cast<int>(inputs.size()) == getSize() &&
                          static_cast<int>(outputs.size()) == getSize(),
                      "expected ", getSize(), " inputs and outputs, got ",
                      inputs.size(), " and ", outputs.size());
    Call call(*this, OpType::ALLTOALL, "ring:all_to_all", options, outputs);
    const at::Tensor received =
        at::empty({ElementsOf(outputs)}, outputs[0].options());
    AddAlltoall(call, received, Concatenated(inputs), CountsOf(inputs),
                CountsOf(outputs),
                [received, outputs] { Distribute(received, outputs); });
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::gather(std::vector<Tensors>& outputs,
                                         Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  return Told(CollectiveKind::kAlltoall, kAlltoall, 1, [&] {
    CheckTensors(inputs);
    const bool is_root = options.rootRank == getRank();
    TORCH_CHECK_VALUE(
        inputs.size() == 1 && outputs.size() == (is_root ? 1 : 0),
        "expected one input, and a list of outputs on the root alone");
    CheckRoot(options.rootRank, getSize());
    if (is_root) {
      CheckTensors(outputs[0]);
      CheckTensors({inputs[0], outputs[0][0]});
    }
    Call call(*this, OpType::GATHER, "ring:gather", options,
              is_root ? outputs[0] : Tensors());
    std::vector<int64_t> splits(getSize(), 0);
    splits.at(options.rootRank) = inputs[0].numel();
    const Tensors targets = is_root ? outputs[0] : Tensors();
    const at::Tensor received =
        at::empty({ElementsOf(targets)}, inputs[0].options());
    AddAlltoall(
        call, received, inputs[0].contiguous(), std::move(splits),
        is_root ? CountsOf(targets) : std::vector<int64_t>(getSize(), 0),
        [received, targets] { Distribute(received, targets); });
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::scatter(Tensors& outputs,
                                          std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  return Told(CollectiveKind::kAlltoall, kAlltoall, 1, [&] {
    CheckTensors(outputs);
    const bool is_root = options.rootRank == getRank();
    TORCH_CHECK_VALUE(
        outputs.size() == 1 && inputs.size() == (is_root ? 1 : 0),
        "expected one output, and a list of inputs on the root alone");
    CheckRoot(options.rootRank, getSize());
    Call call(*this, OpType::SCATTER, "ring:scatter", options, outputs);
    std::vector<int64_t> splits(getSize(), 0);
    at::Tensor sent = at::empty({0}, outputs[0].options());
    if (is_root) {
      CheckTensors(inputs[0]);
      CheckTensors({outputs[0], inputs[0][0]});
      TORCH_CHECK_VALUE(static_cast<int>(inputs[0].size()) == getSize(),
                        "expected ", getSize(),
                        " inputs, one for each rank, got ", inputs[0].size());
      splits = CountsOf(inputs[0]);
      sent = Concatenated(inputs[0]);
    }
    std::vector<int64_t> expected(getSize(), 0);
    expected.at(options.rootRank) = outputs[0].numel();
    AddAlltoall(call, call.InPlace(outputs[0]), sent, std::move(splits),
                std::move(expected), nullptr);
    return call.Submit();
  });
}

RingBackend::WorkPtr RingBackend::barrier(const c10d::BarrierOptions& options) {
  Call call(*this, OpType::BARRIER, "ring:barrier", options, {});
  call.Add(CollectiveKind::kBarrier, kBarrier);
  return call.Submit();
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                   bool wait_all_ranks) {
  const bool is_given = options.timeout != c10d::kUnsetTimeout;
  roll_call_.Call(is_given ? options.timeout : timeout_, wait_all_ranks);
}

}  // namespace ring_keras::torch_backend
