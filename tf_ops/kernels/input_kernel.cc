#include <algorithm>
#include <cstddef>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tf_ops/common/ticks.h"
#include "tf_ops/runtime/first_batch.h"
#include "tf_ops/runtime/observation.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Runs where it is found, rather than when a thread of the pool has time.
class QuickKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  bool IsExpensive() override { return false; }
};

class TicksKernel : public QuickKernel {
 public:
  using QuickKernel::QuickKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* now = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &now));
    now->scalar<int64_t>()() = static_cast<int64_t>(Now());
  }
};

class NoteInputKernel : public QuickKernel {
 public:
  using QuickKernel::QuickKernel;

  void Compute(OpKernelContext* context) override {
    const auto moment = [context](int input) {
      return static_cast<Ticks>(context->input(input).scalar<int64_t>()());
    };
    AddInput(moment(0), moment(1), context->input(2).scalar<double>()());
  }
};

class AwaitsFirstBatchKernel : public QuickKernel {
 public:
  using QuickKernel::QuickKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* awaited = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &awaited));
    awaited->scalar<bool>()() = AwaitsFirstBatch();
  }
};

class NoteFirstBatchKernel : public QuickKernel {
 public:
  using QuickKernel::QuickKernel;

  void Compute(OpKernelContext* context) override {
    if (!ClaimFirstBatch()) return;
    constexpr size_t kMostBytes = 64 << 10;
    FirstBatchDigest digest;
    for (int input = 0; input < context->num_inputs(); ++input) {
      const Tensor& tensor = context->input(input);
      if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) continue;
      const auto bytes = tensor.tensor_data();
      digest.Add(bytes.data(), std::min(bytes.size(), kMostBytes));
    }
    NoteFirstBatch(digest);
  }
};

REGISTER_KERNEL_BUILDER(Name("RingKerasTicks").Device(tensorflow::DEVICE_CPU),
                        TicksKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasNoteInput").Device(tensorflow::DEVICE_CPU), NoteInputKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasAwaitsFirstBatch").Device(tensorflow::DEVICE_CPU),
    AwaitsFirstBatchKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasNoteFirstBatch").Device(tensorflow::DEVICE_CPU),
    NoteFirstBatchKernel);

}  // namespace
}  // namespace ring_keras
