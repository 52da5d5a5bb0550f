// Collectives that are under way between two runs, under XLA.
#include <optional>
#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tf_ops/kernels/departures.h"
#include "tf_ops/kernels/xla/collective_kernel.h"
#include "xla/shape_util.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;

class DepartXlaKernel : public CollectiveXlaKernel {
 public:
  explicit DepartXlaKernel(OpKernelConstruction* construction)
      : CollectiveXlaKernel(construction, KindOf(construction)),
        wire_dtype_(WireDtypeOf(construction)) {
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &tensor_count_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call = NewCall(context, xla_calls::kDepart);
    call.Set(xla_calls::kReduceOp, static_cast<int64_t>(ReduceOp::kAverage));
    call.Set(xla_calls::kWireDtype, NumberOf(wire_dtype_));
    call.Set(xla_calls::kSlot, slot_);
    if (num_inputs() > tensor_count_) {
      call.SetFactor(xla_calls::kFactors[2], tensor_count_);
    }
    for (int i = 0; i < tensor_count_; ++i) {
      call.AddTensor(context->Input(i), false);
    }
    call.Build();
  }

 private:
  static CollectiveKind KindOf(OpKernelConstruction* construction) {
    std::string kind;
    const absl::Status found = construction->GetAttr("kind", &kind);
    if (!found.ok()) construction->SetStatus(found);
    return DepartureNamed(kind);
  }

  const std::optional<DataType> wire_dtype_;
  int tensor_count_ = 0;
  int64_t slot_ = 0;
};

class ArriveXlaKernel : public XlaOpKernel {
 public:
  explicit ArriveXlaKernel(OpKernelConstruction* construction)
      : XlaOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("request_name", &name_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes_));
  }

  void Compile(XlaOpKernelContext* context) override {
    CallBuilder call(context, xla_calls::kArrive);
    call.Set(xla_calls::kName, name_);
    call.Set(xla_calls::kSlot, slot_);
    for (int i = 0; i < num_outputs(); ++i) {
      tensorflow::TensorShape known;
      OP_REQUIRES(context, shapes_[i].AsTensorShape(&known),
                  absl::InvalidArgumentError(
                      StrCat("RingKerasArrive '", name_,
                             "': expected shapes that are known, got ",
                             shapes_[i].DebugString())));
      xla::Shape shape;
      OP_REQUIRES_OK(context, tensorflow::TensorShapeToXLAShape(output_type(i),
                                                                known, &shape));
      call.AddResult(shape);
    }
    const std::vector<xla::XlaOp> results = call.Build();
    if (!context->status().ok()) return;
    for (int i = 0; i < num_outputs(); ++i) context->SetOutput(i, results[i]);
  }

 private:
  std::string name_;
  int64_t slot_ = 0;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};

RING_KERAS_REGISTER_XLA("RingKerasArrive", ArriveXlaKernel);
RING_KERAS_REGISTER_XLA("RingKerasDepart", DepartXlaKernel);

}  // namespace
}  // namespace ring_keras
