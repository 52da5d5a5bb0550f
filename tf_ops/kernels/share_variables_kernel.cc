#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf_ops/kernels/attributes.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/pending.h"
#include "tf_ops/kernels/piece_attributes.h"
#include "tf_ops/kernels/variables.h"
#include "tf_ops/runtime/tensor_memory.h"

namespace ring_keras {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// No lock is held while pieces travel. In one function TensorFlow runs whatever
// else has these variables as inputs before this op, or after it. Whoever reads
// one meanwhile, as another thread may, gets a copy, which stays as it is.
class ShareVariablesKernel : public AsyncOpKernel {
 public:
  explicit ShareVariablesKernel(OpKernelConstruction* construction)
      : AsyncOpKernel(construction),
        attributes_(construction),
        list_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kBroadcast);
    request.dtype = ToDataType(dtype_);
    SetRoots(list_.roots, &request);
    auto pending = Pending::Create(context->num_inputs());
    // The peers wait for this rank: what fails is told to them.
    auto copied = std::make_shared<Variables>();
    request.able = AddInMemory(context, *pending, &request, copied.get());
    pending->BeforeOthers([copied] {
      for (const auto& variable : *copied) variable->copy_on_read_mode = false;
      copied->clear();
    });
    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  using Variables = std::vector<tensorflow::core::RefCountPtr<Var>>;

  // The pieces are in the variables' memory.
  Status AddInMemory(OpKernelContext* context, Pending& pending,
                     Request* request, Variables* copied) const {
    std::vector<Elements> own;
    std::vector<Elements> wholes;
    const auto hold = [&](int input, bool is_written,
                          std::vector<Elements>* held) {
      Tensor tensor;
      const absl::Status status =
          Hold(context, input, is_written, pending, &tensor, copied);
      held->push_back({tensor.data(), tensor.NumElements()});
      return FromTensorFlow(status);
    };
    for (int i = count_; i < context->num_inputs(); ++i) {
      RING_KERAS_RETURN_IF_ERROR(hold(i, false, &own));
    }
    for (int i = 0; i < count_; ++i) {
      RING_KERAS_RETURN_IF_ERROR(hold(i, true, &wholes));
    }
    return AddPieces(list_.pieces, own, wholes, request);
  }

  // Keeps a variable's memory for as long as the collective takes. Whoever
  // reads it gets a copy from now on, if it is one of `copied`.
  absl::Status Hold(OpKernelContext* context, int input, bool is_written,
                    Pending& pending, Tensor* tensor, Variables* copied) const {
    tensorflow::core::RefCountPtr<Var> variable;
    absl::Status status = tensorflow::LookupResource(
        context, tensorflow::HandleFromInput(context, input), &variable);
    if (!status.ok()) return status;
    tensorflow::mutex_lock lock(*variable->mu());
    if (is_written) status = MakeOwn(context, *variable);
    if (status.ok()) status = Show(context, variable->tensor());
    if (!status.ok()) return status;
    *tensor = *variable->tensor();
    if (tensor->dtype() != dtype_) {
      return absl::InvalidArgumentError(
          "A variable of " + tensorflow::DataTypeString(tensor->dtype()) +
          " was given as one of " + tensorflow::DataTypeString(dtype_) + ".");
    }
    pending.AddInput(*tensor);
    if (is_written && !variable->copy_on_read_mode.exchange(true)) {
      copied->push_back(std::move(variable));
    }
    return absl::OkStatus();
  }

  // Has a tensor lie where the ranks of this host can read it, if it can: what
  // comes from NumPy, as of a file, does not.
  static absl::Status Show(OpKernelContext* context, Tensor* tensor) {
    const auto is_shown = [](const Tensor& one) {
      return IsInSharedTensorMemory(one.data(), one.TotalBytes());
    };
    if (tensor->TotalBytes() < kLeastSharedTensorBytes || is_shown(*tensor) ||
        !SharedTensorMemory().has_value()) {
      return absl::OkStatus();
    }
    Tensor shown;
    const absl::Status status =
        context->allocate_temp(tensor->dtype(), tensor->shape(), &shown);
    // There may be no room, or TensorFlow had begun before init().
    if (!status.ok() || !is_shown(shown)) return status;
    std::memcpy(shown.data(), tensor->data(), tensor->TotalBytes());
    *tensor = shown;
    return absl::OkStatus();
  }

  const Attributes attributes_;
  const PieceAttributes list_;
  tensorflow::DataType dtype_ = tensorflow::DT_FLOAT;
  int count_ = 0;  // Of the variables.
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasShareVariables").Device(tensorflow::DEVICE_CPU),
    ShareVariablesKernel);

}  // namespace
}  // namespace ring_keras
