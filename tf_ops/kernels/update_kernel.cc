#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf_ops/kernels/variables.h"
#include "tf_ops/reduce/updates.h"

namespace ring_keras {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

// Variables that nobody else reads or writes while it lives. The locks are
// taken in the order that TensorFlow takes them in.
class LockedVariables {
 public:
  // The first `count` inputs.
  absl::Status Lock(OpKernelContext* context, int count) {
    variables_.resize(count);
    in_order_.resize(count);
    for (int i = 0; i < count; ++i) {
      const absl::Status status = tensorflow::LookupResource(
          context, tensorflow::HandleFromInput(context, i), &variables_[i]);
      if (!status.ok()) return status;
      in_order_[i] = variables_[i].get();
    }
    std::sort(in_order_.begin(), in_order_.end(),
              [](Var* a, Var* b) { return a->mu() < b->mu(); });
    if (std::adjacent_find(in_order_.begin(), in_order_.end()) !=
        in_order_.end()) {
      return absl::InvalidArgumentError("A variable was given twice.");
    }
    for (Var* variable : in_order_) variable->mu()->lock();
    is_locked_ = true;
    return absl::OkStatus();
  }

  ~LockedVariables() {
    if (!is_locked_) return;
    for (Var* variable : in_order_) variable->mu()->unlock();
  }

  Var& operator[](size_t i) { return *variables_[i]; }

 private:
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
  std::vector<Var*> in_order_;
  bool is_locked_ = false;
};

absl::Status WrongGradient(const Tensor& gradient, const Tensor& variable) {
  return absl::InvalidArgumentError(
      "A gradient of " + tensorflow::DataTypeString(gradient.dtype()) +
      gradient.shape().DebugString() + " was given for a variable of " +
      tensorflow::DataTypeString(variable.dtype()) +
      variable.shape().DebugString() + ".");
}

// For each gradient there are kVariables variables. These come first among the
// inputs, by what they are, then scalars, then the gradients.
template <typename T, size_t kVariables>
class UpdateKernel : public OpKernel {
 public:
  explicit UpdateKernel(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("begins", &begins_));
    int count = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count));
    OP_REQUIRES(construction, static_cast<size_t>(count) == begins_.size(),
                absl::InvalidArgumentError(
                    type_string() + ": there are " + std::to_string(count) +
                    " variables, and `begins` of " +
                    std::to_string(begins_.size()) + "."));
  }

  void Compute(OpKernelContext* context) override {
    const int count = static_cast<int>(begins_.size());
    const int first_gradient = num_inputs() - count;
    for (int i = first_scalar(); i < first_gradient; ++i) {
      OP_REQUIRES(
          context,
          tensorflow::TensorShapeUtils::IsScalar(context->input(i).shape()),
          absl::InvalidArgumentError(
              type_string() + ": its input " + std::to_string(i) +
              " must be a scalar, and is of shape " +
              context->input(i).shape().DebugString() + "."));
    }
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, first_scalar()));
    std::vector<std::array<T*, kVariables>> data(count);
    for (int k = 0; k < count; ++k) {
      const Tensor& gradient = context->input(first_gradient + k);
      for (size_t i = 0; i < kVariables; ++i) {
        Var& variable = variables[i * count + k];
        OP_REQUIRES_OK(context, MakeOwn(context, variable));
        const Tensor& tensor = *variable.tensor();
        // Of the model's own, the first, it may be a piece.
        const bool is_piece = i == 0 && begins_[k] != kWhole;
        const int64_t begin = is_piece ? begins_[k] : 0;
        OP_REQUIRES(context,
                    tensor.dtype() == DataTypeToEnum<T>::value && begin >= 0 &&
                        (is_piece ? begin + gradient.NumElements() <=
                                        tensor.NumElements()
                                  : tensor.shape() == gradient.shape()),
                    WrongGradient(gradient, tensor));
        data[k][i] = static_cast<T*>(tensor.data()) + begin;
      }
    }
    for (int k = 0; k < count; ++k) {
      const Tensor& gradient = context->input(first_gradient + k);
      Run(context, data[k], gradient.flat<T>().data(), gradient.NumElements());
    }
  }

 protected:
  // Updates `count` elements of each of `data`.
  virtual void Run(OpKernelContext* context,
                   const std::array<T*, kVariables>& data, const T* gradient,
                   int64_t count) = 0;

  // Which of them, from 0.
  T Scalar(OpKernelContext* context, int which) const {
    return context->input(first_scalar() + which).template scalar<T>()();
  }

  // By as many threads as TensorFlow's own ops of so many bytes.
  template <typename Part>
  static void ForEachPart(OpKernelContext* context, int64_t count,
                          const Part& part) {
    constexpr double kStored = kVariables * sizeof(T);
    constexpr double kCycles = 4;
    context->eigen_cpu_device().parallelFor(
        count, Eigen::TensorOpCost(kStored + sizeof(T), kStored, kCycles),
        [&part](int64_t begin, int64_t end) { part(begin, end - begin); });
  }

 private:
  static constexpr int64_t kWhole = -1;

  int first_scalar() const {
    return static_cast<int>(kVariables * begins_.size());
  }

  std::vector<int64_t> begins_;  // Of each gradient.
};

template <typename T>
class UpdateByMomentumKernel : public UpdateKernel<T, 2> {
 public:
  explicit UpdateByMomentumKernel(OpKernelConstruction* construction)
      : UpdateKernel<T, 2>(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("nesterov", &nesterov_));
  }

 protected:
  void Run(OpKernelContext* context, const std::array<T*, 2>& data,
           const T* gradient, int64_t count) override {
    const MomentumUpdate<T> update = {this->Scalar(context, 0),
                                      this->Scalar(context, 1), nesterov_};
    this->ForEachPart(context, count, [&](int64_t begin, int64_t count) {
      update.Run(data[0] + begin, data[1] + begin, gradient + begin, count);
    });
  }

 private:
  bool nesterov_ = false;
};

template <typename T>
class UpdateByAdamKernel : public UpdateKernel<T, 3> {
 public:
  using UpdateKernel<T, 3>::UpdateKernel;

 protected:
  void Run(OpKernelContext* context, const std::array<T*, 3>& data,
           const T* gradient, int64_t count) override {
    const AdamUpdate<T> update = {
        this->Scalar(context, 0), this->Scalar(context, 1),
        this->Scalar(context, 2), this->Scalar(context, 3)};
    this->ForEachPart(context, count, [&](int64_t begin, int64_t count) {
      update.Run(data[0] + begin, data[1] + begin, data[2] + begin,
                 gradient + begin, count);
    });
  }
};

#define RING_KERAS_REGISTER(name, type, Kernel)                            \
  REGISTER_KERNEL_BUILDER(                                                 \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
      Kernel<type>)
RING_KERAS_REGISTER("RingKerasUpdateByMomentum", float, UpdateByMomentumKernel);
RING_KERAS_REGISTER("RingKerasUpdateByMomentum", double,
                    UpdateByMomentumKernel);
RING_KERAS_REGISTER("RingKerasUpdateByAdam", float, UpdateByAdamKernel);
RING_KERAS_REGISTER("RingKerasUpdateByAdam", double, UpdateByAdamKernel);
#undef RING_KERAS_REGISTER

}  // namespace
}  // namespace ring_keras
