// What the wire "top-k" sends, and adds up.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/common/status.h"
#include "tf_ops/kernels/flat_outputs.h"
#include "tf_ops/kernels/flat_tensors.h"
#include "tf_ops/kernels/known_shapes.h"
#include "tf_ops/kernels/own_part.h"
#include "tf_ops/reduce/largest.h"

namespace ring_keras {
namespace {

using tensorflow::DT_INT32;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// How much is kept of each tensor.
class Kept {
 public:
  absl::Status Read(OpKernelConstruction* construction) {
    std::vector<int64_t> counts;
    const absl::Status status = construction->GetAttr("kept", &counts);
    for (const int64_t count : counts) in_message_.Add(count);
    return status;
  }

  // Where it is in a row of a message.
  const FlatTensors& in_message() const { return in_message_; }

  absl::Status RequireFit(OpKernelContext* context,
                          const FlatTensors& places) const {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (places.count() > kMost) {
      return absl::InvalidArgumentError(
          StrCat("wire=\"top-k\": ", places.count(),
                 " values meet at once, and their places take more than the 31 "
                 "bits that are sent (at most ",
                 kMost, " values). More fragments have fewer meet at once."));
    }
    bool fits = in_message_.size() == places.size();
    for (int64_t i = 0; fits && i < places.size(); ++i) {
      const int64_t kept = in_message_.End(i) - in_message_.Begin(i);
      fits = kept >= 0 && kept <= places.End(i) - places.Begin(i);
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(context->op_kernel().type_string(),
               ": expected in `kept`, for each of ", places.size(),
               " tensors, no more than it has values."));
  }

 private:
  FlatTensors in_message_;
};

// Calls `body` for each tensor, by as many threads as TensorFlow takes for so
// many `cycles` in all.
template <typename Body>
void ForEachTensor(OpKernelContext* context, const FlatTensors& places,
                   double cycles, const Body& body) {
  if (places.size() == 0) return;
  const double mean =
      static_cast<double>(places.count()) / static_cast<double>(places.size());
  context->eigen_cpu_device().parallelFor(
      places.size(),
      Eigen::TensorOpCost(mean * sizeof(float), mean * sizeof(float),
                          mean * cycles),
      [&body](int64_t begin, int64_t end) {
        for (int64_t tensor = begin; tensor < end; ++tensor) body(tensor);
      });
}

class TakeLargestKernel : public OpKernel {
 public:
  explicit TakeLargestKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, kept_.Read(construction));
  }

  void Compute(OpKernelContext* context) override {
    OwnPart own;
    OP_REQUIRES_OK(context, own.Read(context));
    OP_REQUIRES_OK(context, kept_.RequireFit(context, own.places));
    const FlatTensors& in_message = kept_.in_message();
    Tensor* message = nullptr;
    OP_REQUIRES_OK(
        context,
        context->allocate_output(
            "message", TensorShape({1, 2, in_message.count()}), &message));
    FlatOutputs left;
    OP_REQUIRES_OK(context, left.Allocate(context, "left", own.shapes));
    Tensor scratch;
    OP_REQUIRES_OK(context,
                   context->allocate_temp(
                       DT_INT32, TensorShape({own.places.count()}), &scratch));
    int32_t* const all_places = message->flat<int32_t>().data();
    int32_t* const all_bits = all_places + in_message.count();
    int32_t* const all_scratch = scratch.flat<int32_t>().data();
    ForEachTensor(context, own.places, 8, [&](int64_t tensor) {
      const int64_t begin = own.places.Begin(tensor);
      const int64_t count = own.places.End(tensor) - begin;
      const int64_t first = in_message.Begin(tensor);
      const int64_t kept = in_message.End(tensor) - first;
      float* const values = left.data[tensor];
      own.Compute(tensor, 0, count, values);
      int32_t* const places = all_places + first;
      FindLargest(values, count, kept, all_scratch + begin, places);
      for (int64_t i = 0; i < kept; ++i) {
        float& value = values[places[i]];
        std::memcpy(all_bits + first + i, &value, sizeof(value));
        value = 0;
        places[i] += static_cast<int32_t>(begin);
      }
    });
  }

 private:
  Kept kept_;
};

class SumLargestKernel : public OpKernel {
 public:
  explicit SumLargestKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, kept_.Read(construction));
    OP_REQUIRES_OK(construction,
                   ReadKnownShapes(construction, type_string(), &shapes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    const FlatTensors& in_message = kept_.in_message();
    const int64_t count = in_message.count();
    OP_REQUIRES(
        context,
        messages.dims() == 3 && messages.dim_size(1) == 2 &&
            messages.dim_size(2) == count,
        absl::InvalidArgumentError(StrCat(
            type_string(), ": expected messages of ", count,
            " values, got a shape of ", messages.shape().DebugString(), ".")));
    FlatOutputs sums;
    OP_REQUIRES_OK(context, sums.Allocate(context, "sums", shapes_));
    OP_REQUIRES_OK(context, kept_.RequireFit(context, sums.places));
    const int64_t ranks = messages.dim_size(0);
    const int32_t* const received = messages.flat<int32_t>().data();
    std::atomic<bool> all_there = true;
    ForEachTensor(context, sums.places, 1, [&](int64_t tensor) {
      const int64_t begin = sums.places.Begin(tensor);
      const int64_t end = sums.places.End(tensor);
      float* const total = sums.data[tensor];
      std::fill_n(total, end - begin, 0.0f);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int32_t* const places = received + rank * 2 * count;
        const int32_t* const bits = places + count;
        for (int64_t i = in_message.Begin(tensor); i < in_message.End(tensor);
             ++i) {
          if (places[i] < begin || places[i] >= end) {
            all_there = false;
            return;
          }
          float value;
          std::memcpy(&value, bits + i, sizeof(value));
          total[places[i] - begin] += value;
        }
      }
    });
    OP_REQUIRES(context, all_there,
                absl::InvalidArgumentError(
                    StrCat(type_string(),
                           ": a rank has sent a value for a place that "
                           "its tensor does not have.")));
  }

 private:
  Kept kept_;
  std::vector<TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasTakeLargest").Device(tensorflow::DEVICE_CPU),
    TakeLargestKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasSumLargest").Device(tensorflow::DEVICE_CPU),
    SumLargestKernel);

}  // namespace
}  // namespace ring_keras
