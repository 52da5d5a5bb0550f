// What the wire "int8" sends, adds up and takes.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/common/status.h"
#include "tf_ops/kernels/flat_outputs.h"
#include "tf_ops/kernels/flat_tensors.h"
#include "tf_ops/kernels/known_shapes.h"
#include "tf_ops/kernels/own_part.h"
#include "tf_ops/reduce/int8_blocks.h"
#include "tf_ops/reduce/weighted_sum.h"

namespace ring_keras {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kBlock = kInt8Block;
constexpr int64_t kRowBytes = kInt8RowBytes;

// Calls `part` for some rows each time, by as many threads as TensorFlow takes
// for `passes` over so many floats.
template <typename Part>
void ForEachRow(OpKernelContext* context, int64_t rows, double passes,
                const Part& part) {
  constexpr double kBytes = kBlock * sizeof(float);
  context->eigen_cpu_device().parallelFor(
      rows, Eigen::TensorOpCost(passes * kBytes, kBytes, passes * kBlock),
      [&part](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) part(row);
      });
}

// Calls `piece` for each tensor that has something in a row.
template <typename Piece>
void ForEachPieceOfRow(const FlatTensors& places, int64_t row,
                       const Piece& piece) {
  places.ForEachPiece(row * kBlock, (row + 1) * kBlock, piece);
}

absl::Status RequireMessage(OpKernelContext* context, const Tensor& message,
                            bool has_rows) {
  if (has_rows && message.dims() == 2 && message.dim_size(1) == kRowBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat(
      context->op_kernel().type_string(), ": ", message.shape().DebugString(),
      " is not the shape of messages about so many values."));
}

class QuantizeKernel : public OpKernel {
 public:
  explicit QuantizeKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &rows_));
  }

  void Compute(OpKernelContext* context) override {
    OwnPart own;
    OP_REQUIRES_OK(context, own.Read(context));
    Tensor* message = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       "message", TensorShape({rows_, kRowBytes}), &message));
    OP_REQUIRES_OK(context,
                   RequireMessage(context, *message,
                                  rows_ * kBlock >= own.places.count()));
    FlatOutputs left;
    OP_REQUIRES_OK(context, left.Allocate(context, "left", own.shapes));
    int8_t* const bytes = message->flat<int8_t>().data();
    ForEachRow(context, rows_, 4, [&](int64_t row) {
      float part[kBlock] = {};
      ForEachPieceOfRow(
          own.places, row,
          [&](int64_t tensor, int64_t place, int64_t at, int64_t count) {
            own.Compute(tensor, place, count, part + at);
          });
      float rest[kBlock];
      QuantizeBlock(part, bytes + row * kRowBytes, rest);
      ForEachPieceOfRow(
          own.places, row,
          [&](int64_t tensor, int64_t place, int64_t at, int64_t count) {
            std::copy_n(rest + at, count, left.data[tensor] + place);
          });
    });
  }

 private:
  int64_t rows_ = 0;
};

class SumQuantizedKernel : public OpKernel {
 public:
  explicit SumQuantizedKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    const int64_t all_rows = messages.dims() > 0 ? messages.dim_size(0) : 0;
    OpInputList left;
    OP_REQUIRES_OK(context, context->input_list("left", &left));
    FlatOutputs left_now;
    OP_REQUIRES_OK(context, Take(context, left, &left_now));
    OP_REQUIRES_OK(
        context,
        RequireMessage(
            context, messages,
            rows_ > 0 ? all_rows % rows_ == 0 && rank_ < all_rows / rows_ &&
                            all_rows * kBlock >= left_now.places.count()
                      : all_rows == 0 && left_now.places.count() == 0));
    Tensor* message = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       "message", TensorShape({rows_, kRowBytes}), &message));
    const int8_t* const received = messages.flat<int8_t>().data();
    int8_t* const sent = message->flat<int8_t>().data();
    ForEachRow(context, all_rows, 2, [&](int64_t row) {
      float besides[kBlock] = {};
      const int64_t own_row = row - rank_ * rows_;
      if (own_row >= 0 && own_row < rows_) {
        float total[kBlock] = {};
        for (int64_t of_rank = own_row; of_rank < all_rows; of_rank += rows_) {
          AddBlock(received + of_rank * kRowBytes, total);
        }
        QuantizeBlock(total, sent + own_row * kRowBytes, besides);
      }
      // Also where it is zero: of a -0 that makes a 0.
      ForEachPieceOfRow(
          left_now.places, row,
          [&](int64_t tensor, int64_t place, int64_t at, int64_t count) {
            WeightedSum(left[tensor].flat<float>().data() + place, 1,
                        besides + at, count, left_now.data[tensor] + place);
          });
    });
  }

 private:
  // In the memory of the inputs, where nobody else has it.
  static absl::Status Take(OpKernelContext* context, const OpInputList& left,
                           FlatOutputs* left_now) {
    for (int i = 0; i < left.size(); ++i) {
      Tensor* output = nullptr;
      const absl::Status status = context->forward_input_or_allocate_output(
          {1 + i}, 1 + i, left[i].shape(), &output);
      if (!status.ok()) return status;
      left_now->Add(output);
    }
    return absl::OkStatus();
  }

  int64_t rows_ = 0;
  int64_t rank_ = 0;
};

class DequantizeKernel : public OpKernel {
 public:
  explicit DequantizeKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   ReadKnownShapes(construction, type_string(), &shapes_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& message = context->input(0);
    FlatOutputs values;
    OP_REQUIRES_OK(context, values.Allocate(context, "values", shapes_));
    const int64_t rows = message.dims() > 0 ? message.dim_size(0) : 0;
    OP_REQUIRES_OK(context,
                   RequireMessage(context, message,
                                  rows * kBlock >= values.places.count()));
    const int8_t* const bytes = message.flat<int8_t>().data();
    ForEachRow(context, rows, 1, [&](int64_t row) {
      float block[kBlock];
      DequantizeBlock(bytes + row * kRowBytes, block);
      ForEachPieceOfRow(
          values.places, row,
          [&](int64_t tensor, int64_t place, int64_t at, int64_t count) {
            std::copy_n(block + at, count, values.data[tensor] + place);
          });
    });
  }

 private:
  std::vector<TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasQuantize").Device(tensorflow::DEVICE_CPU), QuantizeKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasSumQuantized").Device(tensorflow::DEVICE_CPU),
    SumQuantizedKernel);
REGISTER_KERNEL_BUILDER(
    Name("RingKerasDequantize").Device(tensorflow::DEVICE_CPU),
    DequantizeKernel);

}  // namespace
}  // namespace ring_keras
