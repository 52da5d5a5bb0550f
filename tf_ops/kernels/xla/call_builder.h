// Puts custom calls for collectives into a computation that XLA will compile.
#ifndef RING_KERAS_KERNELS_XLA_CALL_BUILDER_H_
#define RING_KERAS_KERNELS_XLA_CALL_BUILDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tf_ops/common/collective_kind.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace ring_keras {

// One custom call in the making.
class CallBuilder {
 public:
  CallBuilder(tensorflow::XlaOpKernelContext* context, const char* target)
      : context_(context), target_(target) {}

  void Set(const char* attribute, int64_t value);
  void Set(const char* attribute, const std::string& value);
  // One or more.
  void Set(const char* attribute, const std::vector<int64_t>& values);

  // Input number `index` of the op, a scalar of float64, as the factor called
  // `name`: an attribute if it is known now, else an operand. Call it before
  // AddTensor.
  void SetFactor(const char* name, int index);

  // An operand; `result` is whether the call gives back a tensor like it, in
  // the same memory. Sets an error on the context for a shape that is not
  // known now.
  void AddTensor(xla::XlaOp tensor, bool result);

  // A result in memory of its own.
  void AddResult(xla::Shape shape);

  // Puts the call behind all earlier ones of this computation. Returns its
  // results, without the token. If `number` is not 0, FindStart finds it.
  std::vector<xla::XlaOp> Build(int64_t number = 0);

  // All results as one value; only after Build. The first is the token.
  xla::XlaOp tuple() const { return tuple_; }

 private:
  tensorflow::XlaOpKernelContext* context_;
  const char* target_;
  std::string attributes_;
  std::vector<xla::XlaOp> operands_;
  std::vector<xla::Shape> operand_shapes_;
  std::vector<xla::Shape> result_shapes_;
  // Result -> operand that lends it its memory.
  std::vector<std::pair<int64_t, int64_t>> shared_;
  xla::XlaOp tuple_;
};

// What the last call of this computation gives to the next.
xla::XlaOp Token(tensorflow::XlaOpKernelContext* context);

// Has the next call take that instead.
void SetToken(tensorflow::XlaOpKernelContext* context, xla::XlaOp token);

// A number for a start that no other in this process has.
int64_t NewStartNumber();

// The number of the start in this computation that gave `tuple`; 0 if none did.
int64_t FindStart(tensorflow::XlaOpKernelContext* context, xla::XlaOp tuple);

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_XLA_CALL_BUILDER_H_
