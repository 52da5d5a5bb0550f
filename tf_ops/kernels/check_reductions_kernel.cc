#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/kernels/conversions.h"
#include "tf_ops/kernels/reduction_fault.h"

namespace ring_keras {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class CheckReductionsKernel : public OpKernel {
 public:
  explicit CheckReductionsKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& bits = context->input(0);
    const Tensor& sums = context->input(1);
    OP_REQUIRES(context,
                bits.dims() == 2 && bits.dim_size(1) == num_outputs() + 1 &&
                    sums.dims() == 2 && sums.dim_size(0) == 4,
                absl::InvalidArgumentError(
                    "RingKerasCheckReductions: bits must be of shape [ranks, "
                    "tensors + 1], sums of shape [4, blocks]."));
    const std::string fault = ReductionFault(
        {bits.flat<double>().data(), bits.dim_size(0), num_outputs(),
         sums.flat<double>().data(), sums.dim_size(1)},
        names_);
    OP_REQUIRES(context, fault.empty(), ToTensorFlow(CorruptData(fault)));
    for (int i = 0; i < num_outputs(); ++i) {
      context->set_output(i, context->input(2 + i));
    }
  }

 private:
  std::string names_;
};

REGISTER_KERNEL_BUILDER(
    Name("RingKerasCheckReductions").Device(tensorflow::DEVICE_CPU),
    CheckReductionsKernel);
REGISTER_KERNEL_BUILDER(Name("RingKerasCheckReductions")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("bits")
                            .HostMemory("sums"),
                        CheckReductionsKernel);

}  // namespace
}  // namespace ring_keras
