// The ops under XLA: each becomes a custom call, in the order of the trace.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/collectives/partition.h"
#include "tf_ops/common/export.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/known_shapes.h"
#include "tf_ops/kernels/piece_attributes.h"
#include "tf_ops/kernels/xla/call_builder.h"
#include "tf_ops/kernels/xla/collective_kernel.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "tf_ops/kernels/xla/started_calls.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

// One that reduces.
class ReductionXlaKernel : public CollectiveXlaKernel {
 public:
  ReductionXlaKernel(OpKernelConstruction* construction, CollectiveKind kind)
      : CollectiveXlaKernel(construction, kind) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    reduce_op_ = ToReduceOp(name);
    on_gpu_ = construction->device_type().type_string() == kXlaGpu;
  }

 protected:
  // An input of the op as it is reduced. NCCL computes with no booleans and no
  // integers of 16 bits: on a GPU they go as integers of 32.
  XlaOp ToReduce(XlaOpKernelContext* context, int index) const {
    const tensorflow::DataType dtype = context->input_type(index);
    const bool widens = on_gpu_ && (dtype == tensorflow::DT_BOOL ||
                                    dtype == tensorflow::DT_INT16 ||
                                    dtype == tensorflow::DT_UINT16);
    return widens ? xla::ConvertElementType(context->Input(index), xla::S32)
                  : context->Input(index);
  }

  // `first_factor` is the input with the prescale; the postscale follows.
  void SetReduction(CallBuilder* call, int first_factor) const {
    call->Set(xla_calls::kIsBool, input_type(0) == tensorflow::DT_BOOL);
    call->Set(xla_calls::kReduceOp, static_cast<int64_t>(reduce_op_));
    call->SetFactor(xla_calls::kFactors[0], first_factor);
    call->SetFactor(xla_calls::kFactors[1], first_factor + 1);
  }

 private:
  ReduceOp reduce_op_ = ReduceOp::kSum;
  bool on_gpu_ = false;
};

// Sets an output of the op to what came of ToReduce.
void SetReduced(XlaOpKernelContext* context, int index, XlaOp reduced) {
  xla::PrimitiveType type;
  OP_REQUIRES_OK(context, tensorflow::DataTypeToPrimitiveType(
                              context->expected_output_dtype(index), &type));
  // Where it is of that type this changes nothing.
  context->SetOutput(index, xla::ConvertElementType(reduced, type));
}

class AllreduceXlaKernel : public ReductionXlaKernel {
 public:
  explicit AllreduceXlaKernel(OpKernelConstruction* construction)
      : ReductionXlaKernel(construction, CollectiveKind::kAllreduce),
        wire_dtype_(WireDtypeOf(construction)) {}

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call = NewCall(context, xla_calls::kRun);
    SetReduction(&call, 1);
    call.Set(xla_calls::kWireDtype, NumberOf(wire_dtype_));
    call.AddTensor(ToReduce(context, 0), true);
    const std::vector<XlaOp> results = call.Build();
    if (context->status().ok()) SetReduced(context, 0, results[0]);
  }

 private:
  const std::optional<DataType> wire_dtype_;
};

class AllreduceStartXlaKernel : public ReductionXlaKernel {
 public:
  explicit AllreduceStartXlaKernel(OpKernelConstruction* construction)
      : ReductionXlaKernel(construction, CollectiveKind::kAllreduce),
        wire_dtype_(WireDtypeOf(construction)) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &tensor_count_));
    OP_REQUIRES_OK(construction, construction->GetAttr("W", &weight_count_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("wait_follows", &wait_follows_));
    std::vector<int64_t> splits;
    OP_REQUIRES_OK(construction, construction->GetAttr("splits", &splits));
    OP_REQUIRES(construction, splits.empty(),
                absl::UnimplementedError(
                    "RingKerasAllreduceStart: not with splits under XLA"));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call = NewCall(context, xla_calls::kStart);
    SetReduction(&call, tensor_count_);
    if (weight_count_ > 0) {
      call.SetFactor(xla_calls::kFactors[2], tensor_count_ + 2);
    }
    call.Set(xla_calls::kWireDtype, NumberOf(wire_dtype_));
    call.Set(xla_calls::kWaitFollows, wait_follows_);
    for (int i = 0; i < tensor_count_; ++i) {
      call.AddTensor(ToReduce(context, i), true);
    }
    call.Build(NewStartNumber());
    // Of all kinds of values it is the one that may hold several tensors.
    if (context->status().ok()) context->SetTensorListOutput(0, call.tuple());
  }

 private:
  const std::optional<DataType> wire_dtype_;
  int tensor_count_ = 0;
  int weight_count_ = 0;
  bool wait_follows_ = false;
};

class AllreduceWaitXlaKernel : public CollectiveXlaKernel {
 public:
  explicit AllreduceWaitXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kAllreduce) {}

  void Compile(XlaOpKernelContext* context) override {
    const XlaOp started = context->Input(0);
    const int64_t number = FindStart(context, started);
    OP_REQUIRES(
        context, number != 0,
        absl::InvalidArgumentError(StrCat(
            "allreduce '", prototype().name,
            "': under XLA its wait must be in the same function, and on the "
            "same side of a condition or loop, as its start.")));
    StartedCalls::Get().SetHasWait(number);
    CallBuilder call(context, xla_calls::kWait);
    call.Set(xla_calls::kNumber, number);
    call.AddTensor(xla::GetTupleElement(started, 0), false);  // Its token.
    for (int i = 0; i < num_outputs(); ++i) {
      call.AddTensor(xla::GetTupleElement(started, i + 1), true);
    }
    const std::vector<XlaOp> results = call.Build();
    if (!context->status().ok()) return;
    for (int i = 0; i < num_outputs(); ++i) SetReduced(context, i, results[i]);
  }
};

class BroadcastXlaKernel : public CollectiveXlaKernel {
 public:
  explicit BroadcastXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kBroadcast) {
    OP_REQUIRES_OK(construction, construction->GetAttr("roots", &roots_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call = NewCall(context, xla_calls::kRun);
    call.Set(xla_calls::kRoots, roots_);
    for (int i = 0; i < num_inputs(); ++i) {
      call.AddTensor(context->Input(i), true);
    }
    const std::vector<XlaOp> results = call.Build();
    if (!context->status().ok()) return;
    for (int i = 0; i < num_outputs(); ++i) context->SetOutput(i, results[i]);
  }

 private:
  std::vector<int64_t> roots_;
};

// The results have memory of their own: what the pieces are of may still be
// read.
class BroadcastPiecesXlaKernel : public CollectiveXlaKernel {
 public:
  explicit BroadcastPiecesXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kBroadcast),
        list_(construction) {
    OP_REQUIRES_OK(
        construction,
        ReadKnownShapes(construction, "RingKerasBroadcastPieces", &shapes_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call = NewCall(context, xla_calls::kRun);
    call.Set(xla_calls::kRoots, list_.roots);
    call.Set(xla_calls::kEnds, list_.pieces.ends);
    call.Set(xla_calls::kWholes, list_.pieces.wholes);
    call.Set(xla_calls::kApart, list_.pieces.own);
    for (int i = 0; i < num_inputs(); ++i) {
      call.AddTensor(context->Input(i), false);
    }
    for (const tensorflow::TensorShape& shape : shapes_) {
      xla::Shape whole;
      OP_REQUIRES_OK(context, tensorflow::TensorShapeToXLAShape(input_type(0),
                                                                shape, &whole));
      call.AddResult(whole);
    }
    const std::vector<XlaOp> results = call.Build();
    if (!context->status().ok()) return;
    for (int i = 0; i < num_outputs(); ++i) context->SetOutput(i, results[i]);
  }

 private:
  const PieceAttributes list_;
  std::vector<tensorflow::TensorShape> shapes_;
};

// Input 0, which has rows. The op's shape function says so too, but it does not
// know every shape, and is not asked again when XLA does.
absl::StatusOr<xla::Shape> InputWithRows(XlaOpKernelContext* context) {
  auto shape = context->InputXlaShape(0);
  if (!shape.ok() || !shape->dimensions().empty()) return shape;
  return absl::InvalidArgumentError(
      StrCat(context->op_kernel().type_string(),
             " needs a first dimension; a scalar has none. Reshape it to "
             "[1] first."));
}

// Ends `call`, whose result has `rows` rows and is like `input` for the rest.
void CompileRows(XlaOpKernelContext* context, CallBuilder call, XlaOp input,
                 int64_t rows) {
  const auto shape = context->builder()->GetShape(input);
  OP_REQUIRES_OK(context, shape.status());
  call.AddTensor(input, false);
  xla::Shape output = *shape;
  output.set_dimensions(0, rows);
  call.AddResult(output);
  const std::vector<XlaOp> results = call.Build();
  if (context->status().ok()) SetReduced(context, 0, results[0]);
}

// The number of rows that all ranks together have is known only when they
// meet, so the handler insists on equal numbers.
class AllgatherXlaKernel : public CollectiveXlaKernel {
 public:
  explicit AllgatherXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kAllgather) {}

  void Compile(XlaOpKernelContext* context) override {
    const auto input = InputWithRows(context);
    OP_REQUIRES_OK(context, input.status());
    const int64_t size = Ranks(context).size();
    CompileRows(context, NewCall(context, xla_calls::kRun), context->Input(0),
                size * input->dimensions(0));
  }
};

class ReduceScatterXlaKernel : public ReductionXlaKernel {
 public:
  explicit ReduceScatterXlaKernel(OpKernelConstruction* construction)
      : ReductionXlaKernel(construction, CollectiveKind::kReduceScatter) {}

  void Compile(XlaOpKernelContext* context) override {
    const auto input = InputWithRows(context);
    OP_REQUIRES_OK(context, input.status());
    const std::vector<int> ranks = Ranks(context);
    const auto topology = Runtime::Get().GetTopology();
    OP_REQUIRES_OK(context, ToTensorFlow(topology.status()));
    const auto own =
        std::find(ranks.begin(), ranks.end(), topology.value().rank);
    OP_REQUIRES(
        context, own != ranks.end(),
        absl::InvalidArgumentError(StrCat(
            "reduce_scatter '", prototype().name, "': rank ",
            topology.value().rank, " is no member of its process set.")));
    CallBuilder call = NewCall(context, xla_calls::kRun);
    SetReduction(&call, 1);
    CompileRows(
        context, std::move(call), ToReduce(context, 0),
        Part(input->dimensions(0), ranks.size(), own - ranks.begin()).size());
  }
};

class AlltoallXlaKernel : public CollectiveXlaKernel {
 public:
  explicit AlltoallXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kAlltoall) {}

  void Compile(XlaOpKernelContext* context) override {
    const auto input = InputWithRows(context);
    OP_REQUIRES_OK(context, input.status());
    const auto splits = context->InputXlaShape(1);
    OP_REQUIRES_OK(context, splits.status());
    OP_REQUIRES(
        context, xla::ShapeUtil::ElementsIn(*splits) == 0,
        absl::UnimplementedError(StrCat(
            "alltoall '", prototype().name,
            "': with splits, how many rows come is known only when ranks meet, "
            "but XLA must know it when it compiles. Give no splits, or take it "
            "out of the compiled function (jit_compile).")));
    const int64_t size = Ranks(context).size();
    if (!context->status().ok()) return;
    CompileRows(context, NewCall(context, xla_calls::kRun), context->Input(0),
                input->dimensions(0));
    tensorflow::Tensor received(tensorflow::DT_INT64,
                                tensorflow::TensorShape({size}));
    received.vec<int64_t>().setConstant(input->dimensions(0) / size);
    context->SetConstantOutput(1, received);
  }
};

class BarrierXlaKernel : public CollectiveXlaKernel {
 public:
  explicit BarrierXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, CollectiveKind::kBarrier) {}

  void Compile(XlaOpKernelContext* context) override {
    NewCall(context, xla_calls::kRun).Build();
  }
};

// No collective, but its error ends the run, like theirs.
class CheckReductionsXlaKernel : public XlaOpKernel {
 public:
  explicit CheckReductionsXlaKernel(OpKernelConstruction* construction)
      : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call(context, xla_calls::kCheck);
    call.Set(xla_calls::kNames, names_);
    for (int i = 0; i < num_inputs(); ++i) {
      call.AddTensor(context->Input(i), i >= 2);
    }
    const std::vector<XlaOp> results = call.Build();
    if (!context->status().ok()) return;
    for (int i = 0; i < num_outputs(); ++i) context->SetOutput(i, results[i]);
  }

 private:
  std::string names_;
};

// The token of one computation enters another, such as a condition's branch,
// and leaves it, as the value of a variable: those XLA hands in and out.
class TakeOrderXlaKernel : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    SetToken(context, xla::ConvertElementType(context->Input(0), xla::U8));
  }
};

class GiveOrderXlaKernel : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    const XlaOp token = Token(context);
    if (!context->status().ok()) return;
    context->SetOutput(0, xla::ConvertElementType(token, xla::F32));
  }
};

RING_KERAS_REGISTER_XLA("RingKerasAllgather", AllgatherXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasAllreduce", AllreduceXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasAllreduceStart", AllreduceStartXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasAllreduceWait", AllreduceWaitXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasAlltoall", AlltoallXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasBarrier", BarrierXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasBroadcast", BroadcastXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasCheckReductions", CheckReductionsXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasGiveOrder", GiveOrderXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasBroadcastPieces", BroadcastPiecesXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasReduceScatter", ReduceScatterXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasTakeOrder", TakeOrderXlaKernel);

}  // namespace
}  // namespace ring_keras

// That the library has this symbol tells ring_keras/_libraries.py that it has
// these kernels.
extern "C" RING_KERAS_EXPORT void RingKerasHasXlaKernels() {}
