// What the ops that reduce share: a reduce op, and factors known at run time.
#ifndef RING_KERAS_KERNELS_REDUCTION_H_
#define RING_KERAS_KERNELS_REDUCTION_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class Reduction {
 public:
  // `prescale` and `postscale` are the inputs number `first_factor` and the
  // next.
  Reduction(tensorflow::OpKernelConstruction* construction, int first_factor)
      : first_factor_(first_factor) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    reduce_op_ = ToReduceOp(name);
  }

  ReduceOp op() const { return reduce_op_; }

  absl::Status ApplyTo(Request* request,
                       tensorflow::OpKernelContext* context) const {
    request->reduce_op = reduce_op_;
    absl::Status status =
        ReadScalar(context, first_factor_, "prescale", &request->prescale);
    if (!status.ok()) return status;
    return ReadScalar(context, first_factor_ + 1, "postscale",
                      &request->postscale);
  }

  // Input number `index`, of float64; `name` is for messages.
  static absl::Status ReadScalar(tensorflow::OpKernelContext* context,
                                 int index, const char* name, double* value) {
    const tensorflow::Tensor& tensor = context->input(index);
    if (tensor.NumElements() != 1) {
      return absl::InvalidArgumentError(
          StrCat(name, " must be a scalar. Received shape: ",
                 DebugString(ToShape(tensor.shape()))));
    }
    *value = tensor.flat<double>()(0);
    return absl::OkStatus();
  }

 private:
  const int first_factor_;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_REDUCTION_H_
