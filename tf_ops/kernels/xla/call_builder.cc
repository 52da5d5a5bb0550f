#include "tf_ops/kernels/xla/call_builder.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/refcount.h"
#include "tf_ops/common/status.h"
#include "tf_ops/kernels/xla/custom_calls.h"
#include "xla/shape_util.h"

namespace ring_keras {

using tensorflow::XlaOpKernelContext;
using xla::XlaOp;

namespace {

// What the calls of one computation know of each other while it is built.
struct Trace : tensorflow::ResourceBase {
  std::string DebugString() const override { return "ring_keras::Trace"; }

  XlaOp TokenIn(xla::XlaBuilder* builder) const {
    return token.valid() ? token : xla::ConstantR0<uint8_t>(builder, 0);
  }

  XlaOp token;  // Of the last call.
  // The starts' results, and their numbers.
  std::vector<std::pair<XlaOp, int64_t>> starts;
};

// It lives as long as the compilation of this computation.
tensorflow::core::RefCountPtr<Trace> TraceOf(XlaOpKernelContext* context) {
  tensorflow::OpKernelContext* op = context->op_kernel_context();
  Trace* trace = nullptr;
  const absl::Status found = op->step_container()->LookupOrCreate<Trace>(
      op->resource_manager(), "ring_keras_trace", &trace, [](Trace** made) {
        *made = new Trace;
        return absl::OkStatus();
      });
  if (!found.ok()) context->SetStatus(found);
  return tensorflow::core::RefCountPtr<Trace>(trace);
}

// Text in quotes, as MLIR reads it.
std::string Quoted(const std::string& text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const unsigned char c : text) {
    if (c >= ' ' && c < 0x7f && c != '"' && c != '\\') {
      quoted += static_cast<char>(c);
    } else {
      quoted += {'\\', kDigits[c >> 4], kDigits[c & 15]};
    }
  }
  return quoted + '"';
}

// All bits of a number, as MLIR reads it.
std::string Bits(double value) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) {
    text += kDigits[bits >> shift & 15];
  }
  return text + " : f64";
}

xla::Shape RowMajor(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(),
                                                       shape.dimensions());
}

}  // namespace

void CallBuilder::Set(const char* attribute, int64_t value) {
  attributes_ += StrCat(", ", attribute, " = ", value, " : i64");
}

void CallBuilder::Set(const char* attribute, const std::string& value) {
  attributes_ += StrCat(", ", attribute, " = ", Quoted(value));
}

void CallBuilder::Set(const char* attribute,
                      const std::vector<int64_t>& values) {
  attributes_ += StrCat(", ", attribute, " = array<i64");
  for (size_t i = 0; i < values.size(); ++i) {
    attributes_ += StrCat(i == 0 ? ": " : ", ", values[i]);
  }
  attributes_ += ">";
}

void CallBuilder::SetFactor(const char* name, int index) {
  const auto shape = context_->InputXlaShape(index);
  if (!shape.ok() || xla::ShapeUtil::ElementsIn(*shape) != 1) {
    context_->SetStatus(shape.ok()
                            ? absl::InvalidArgumentError(StrCat(
                                  name, " must be a scalar. Received shape: ",
                                  shape->ToString()))
                            : shape.status());
    return;
  }
  double value = 0;
  if (context_->ConstantInputAsFloatScalar(index, &value).ok()) {
    attributes_ += StrCat(", ", name, " = ", Bits(value));
  } else {
    Set(StrCat(name, xla_calls::kOperandSuffix).c_str(), 1);
    AddTensor(context_->Input(index), false);
  }
}

void CallBuilder::AddTensor(XlaOp tensor, bool result) {
  const absl::StatusOr<xla::Shape> shape =
      context_->builder()->GetShape(tensor);
  if (!shape.ok()) {
    context_->SetStatus(shape.status());
    return;
  }
  if (!shape->IsArray() || !shape->is_static()) {
    context_->SetStatus(absl::InvalidArgumentError(
        StrCat("a collective that XLA compiles takes tensors whose shapes are "
               "known when it compiles, got ",
               shape->ToString(),
               ". Take it out of the compiled function, or "
               "turn jit_compile off.")));
    return;
  }
  operands_.push_back(tensor);
  operand_shapes_.push_back(RowMajor(*shape));
  if (!result) return;
  shared_.emplace_back(result_shapes_.size(), operands_.size() - 1);
  result_shapes_.push_back(operand_shapes_.back());
}

void CallBuilder::AddResult(xla::Shape shape) {
  result_shapes_.push_back(RowMajor(shape));
}

std::vector<XlaOp> CallBuilder::Build(int64_t number) {
  if (!context_->status().ok()) return {};
  const auto trace = TraceOf(context_);
  if (trace == nullptr) return {};
  xla::XlaBuilder* builder = context_->builder();
  const xla::Shape token = RowMajor(xla::ShapeUtil::MakeShape(xla::U8, {}));

  std::vector<XlaOp> operands = {trace->TokenIn(builder)};
  operands.insert(operands.end(), operands_.begin(), operands_.end());
  std::vector<xla::Shape> operand_shapes = {token};
  operand_shapes.insert(operand_shapes.end(), operand_shapes_.begin(),
                        operand_shapes_.end());
  std::vector<xla::Shape> result_shapes = {token};
  result_shapes.insert(result_shapes.end(), result_shapes_.begin(),
                       result_shapes_.end());
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliases;
  const xla::ShapeIndex whole;
  for (const auto& [result, operand] : shared_) {
    aliases.emplace_back(xla::ShapeIndex({result + 1}),
                         std::make_pair(operand + 1, whole));
  }
  if (number != 0) Set(xla_calls::kNumber, number);

  tuple_ = xla::CustomCallWithLayout(
      builder, target_, operands, xla::ShapeUtil::MakeTupleShape(result_shapes),
      operand_shapes,
      "{" + attributes_.substr(attributes_.empty() ? 0 : 2) + "}",
      /*has_side_effect=*/true, aliases, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  trace->token = xla::GetTupleElement(tuple_, 0);
  if (number != 0) trace->starts.emplace_back(tuple_, number);
  std::vector<XlaOp> results;
  for (size_t i = 0; i < result_shapes_.size(); ++i) {
    results.push_back(xla::GetTupleElement(tuple_, i + 1));
  }
  return results;
}

XlaOp Token(XlaOpKernelContext* context) {
  const auto trace = TraceOf(context);
  return trace == nullptr ? XlaOp() : trace->TokenIn(context->builder());
}

void SetToken(XlaOpKernelContext* context, XlaOp token) {
  if (const auto trace = TraceOf(context)) trace->token = token;
}

int64_t NewStartNumber() {
  static std::atomic<int64_t> next{1};
  return next.fetch_add(1);
}

int64_t FindStart(XlaOpKernelContext* context, XlaOp tuple) {
  const auto trace = TraceOf(context);
  if (trace == nullptr) return 0;
  for (const auto& [start, number] : trace->starts) {
    if (start.IsIdenticalTo(tuple)) return number;
  }
  return 0;
}

}  // namespace ring_keras
