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
  explicit Reduction(tensorflow::OpKernelConstruction* construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    reduce_op_ = ToReduceOp(name);
  }

  // Completes `request` from the attribute and the scalar inputs "prescale" and
  // "postscale".
  absl::Status ApplyTo(Request* request,
                       tensorflow::OpKernelContext* context) const {
    request->reduce_op = reduce_op_;
    absl::Status status = Read(context, "prescale", &request->prescale);
    if (!status.ok()) return status;
    return Read(context, "postscale", &request->postscale);
  }

 private:
  static absl::Status Read(tensorflow::OpKernelContext* context,
                           const char* name, double* factor) {
    const tensorflow::Tensor* tensor = nullptr;
    absl::Status status = context->input(name, &tensor);
    if (!status.ok()) return status;
    if (tensor->NumElements() != 1) {
      return absl::InvalidArgumentError(
          StrCat(name, "_factor must be a scalar. Received shape: ",
                 DebugString(ToShape(tensor->shape()))));
    }
    *factor = tensor->flat<double>()(0);
    return absl::OkStatus();
  }

  ReduceOp reduce_op_ = ReduceOp::kSum;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_REDUCTION_H_
