// The attributes that every collective's op has.
#ifndef RING_KERAS_KERNELS_ATTRIBUTES_H_
#define RING_KERAS_KERNELS_ATTRIBUTES_H_

#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf_ops/runtime/request.h"

namespace ring_keras {

class Attributes {
 public:
  // Reports a missing attribute on `construction`.
  explicit Attributes(tensorflow::OpKernelConstruction* construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("request_name", &request_name_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("communicator_id", &communicator_id_));
  }

  Request NewRequest(CollectiveKind kind) const {
    Request request;
    request.kind = kind;
    request.name = request_name_;
    request.communicator_id = communicator_id_;
    return request;
  }

 private:
  std::string request_name_;
  int communicator_id_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_ATTRIBUTES_H_
