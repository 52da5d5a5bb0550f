// NumPy's element types and ours.
#ifndef RING_KERAS_BINDINGS_NUMPY_TYPES_H_
#define RING_KERAS_BINDINGS_NUMPY_TYPES_H_

#include <pybind11/numpy.h>

#include <string>

#include "tf_ops/common/data_type.h"
#include "tf_ops/common/reduce_op.h"

namespace ring_keras {

// Throws ValueError for a type that collectives do not move. bfloat16 is
// ml_dtypes', which TensorFlow's own arrays use.
DataType DataTypeOf(const pybind11::dtype& dtype);

// The type of that name; throws ValueError for others.
DataType ParseDataType(const std::string& name);

// "sum", "average", "min", "max", "product"; throws ValueError for others.
ReduceOp ParseReduceOp(const std::string& name);

}  // namespace ring_keras

#endif  // RING_KERAS_BINDINGS_NUMPY_TYPES_H_
