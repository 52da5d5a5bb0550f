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
      : AsyncOpKernel(construction), attributes_(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("counts", &counts_));
    OP_REQUIRES_OK(construction, construction->GetAttr("ends", &ends_));
    OP_REQUIRES_OK(construction, construction->GetAttr("roots", &roots_));
    OP_REQUIRES_OK(construction, construction->GetAttr("apart", &apart_));
    int64_t pieces = 0;
    for (int64_t count : counts_) pieces += count;
    const auto is_of_each = [pieces](const std::vector<int64_t>& values) {
      return static_cast<int64_t>(values.size()) == pieces;
    };
    OP_REQUIRES(
        construction,
        is_of_each(ends_) && is_of_each(roots_) && is_of_each(apart_),
        absl::InvalidArgumentError("`ends`, `roots` and `apart` need a number "
                                   "for each of " +
                                   std::to_string(pieces) + " pieces."));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Request request = attributes_.NewRequest(CollectiveKind::kBroadcast);
    request.dtype = ToDataType(dtype_);
    SetRoots(roots_, &request);
    auto pending = Pending::Create(context->num_inputs());
    // The peers wait for this rank: what fails is told to them.
    auto copied = std::make_shared<Variables>();
    request.able =
        FromTensorFlow(AddPieces(context, *pending, &request, copied.get()));
    pending->BeforeOthers([copied] {
      for (const auto& variable : *copied) variable->copy_on_read_mode = false;
      copied->clear();
    });
    pending->Complete(std::move(request), context, std::move(done));
  }

 private:
  using Variables = std::vector<tensorflow::core::RefCountPtr<Var>>;

  // The pieces are in the variables' memory.
  absl::Status AddPieces(OpKernelContext* context, Pending& pending,
                         Request* request, Variables* copied) const {
    const int variables = static_cast<int>(counts_.size());
    std::vector<char*> apart;
    std::vector<int64_t> apart_elements;
    for (int i = variables; i < context->num_inputs(); ++i) {
      Tensor tensor;
      const absl::Status status =
          Hold(context, i, false, pending, &tensor, copied);
      if (!status.ok()) return status;
      apart.push_back(static_cast<char*>(tensor.data()));
      apart_elements.push_back(tensor.NumElements());
    }
    const auto size = static_cast<int64_t>(tensorflow::DataTypeSize(dtype_));
    size_t piece = 0;
    for (int i = 0; i < variables; ++i) {
      Tensor tensor;
      const absl::Status status =
          Hold(context, i, true, pending, &tensor, copied);
      if (!status.ok()) return status;
      auto* const whole = static_cast<char*>(tensor.data());
      int64_t begin = 0;
      for (int64_t n = 0; n < counts_[i]; ++n, ++piece) {
        const int64_t end = ends_[piece];
        const int64_t own = apart_[piece];
        if (end < begin || end > tensor.NumElements()) {
          return absl::InvalidArgumentError(
              "A piece of a variable of " +
              std::to_string(tensor.NumElements()) + " elements ends at " +
              std::to_string(end) + ".");
        }
        if (own >= 0 && (own >= static_cast<int64_t>(apart.size()) ||
                         apart_elements[own] != end - begin)) {
          return absl::InvalidArgumentError(
              "A piece of " + std::to_string(end - begin) +
              " elements is in none of `pieces`.");
        }
        char* const output = whole + begin * size;
        request->outputs.push_back(output);
        request->inputs.push_back(
            {own < 0 ? output : apart[own], {end - begin}});
        begin = end;
      }
    }
    return absl::OkStatus();
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
  tensorflow::DataType dtype_ = tensorflow::DT_FLOAT;
  std::vector<int64_t> counts_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> roots_;
  std::vector<int64_t> apart_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasShareVariables").Device(tensorflow::DEVICE_CPU),
    ShareVariablesKernel);

}  // namespace
}  // namespace ring_keras
