// TensorFlow's words for the core's types, and back.
#ifndef RING_KERAS_KERNELS_CONVERSIONS_H_
#define RING_KERAS_KERNELS_CONVERSIONS_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/tensor_view.h"
#include "tf_ops/kernels/named_status.h"

namespace ring_keras {

// For the `Attr` of an op's element type: what collectives move.
#define RING_KERAS_DTYPES                                                     \
  "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double," \
  " bool}"

// The core's number of `dtype`; only for types of RING_KERAS_DTYPES.
inline DataType ToDataType(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_UINT8:
      return DataType::kUint8;
    case tensorflow::DT_INT8:
      return DataType::kInt8;
    case tensorflow::DT_UINT16:
      return DataType::kUint16;
    case tensorflow::DT_INT16:
      return DataType::kInt16;
    case tensorflow::DT_INT32:
      return DataType::kInt32;
    case tensorflow::DT_INT64:
      return DataType::kInt64;
    case tensorflow::DT_HALF:
      return DataType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DataType::kBfloat16;
    case tensorflow::DT_DOUBLE:
      return DataType::kFloat64;
    case tensorflow::DT_BOOL:
      return DataType::kBool;
    default:  // The op's definition admits nothing else.
      return DataType::kFloat32;
  }
}

// The op that an attribute names; the op's definition checks the name.
inline ReduceOp ToReduceOp(const std::string& name) {
  for (int i = 0; i < kReduceOpCount; ++i) {
    if (name == NameOf(static_cast<ReduceOp>(i))) {
      return static_cast<ReduceOp>(i);
    }
  }
  return ReduceOp::kSum;
}

inline Shape ToShape(const tensorflow::TensorShape& shape) {
  Shape sizes(shape.dims());
  for (int i = 0; i < shape.dims(); ++i) sizes[i] = shape.dim_size(i);
  return sizes;
}

inline void* DataOf(const tensorflow::Tensor& tensor) { return tensor.data(); }

inline TensorView ViewOf(const tensorflow::Tensor& tensor) {
  return {DataOf(tensor), ToShape(tensor.shape())};
}

// For a request whose peers are to be told.
inline Status FromTensorFlow(const absl::Status& status) {
  if (status.ok()) return Status::Ok();
  const StatusCode code = absl::IsResourceExhausted(status)
                              ? StatusCode::kResourceExhausted
                              : StatusCode::kInvalidArgument;
  return Status(code, std::string(status.message()));
}

// The status as TensorFlow carries it.
inline absl::Status ToTensorFlow(const NamedStatus& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code), status.text);
}
inline absl::Status ToTensorFlow(const Status& status) {
  return ToTensorFlow(Named(status));
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_CONVERSIONS_H_
