// The attributes that every collective's op has.
#ifndef RING_KERAS_KERNELS_ATTRIBUTES_H_
#define RING_KERAS_KERNELS_ATTRIBUTES_H_

#include <optional>
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
    if (!construction->HasAttr("step")) return;
    std::string step;
    OP_REQUIRES_OK(construction, construction->GetAttr("step", &step));
    if (step == "begins") step_role_ = StepRole::kBegins;
    if (step == "begins_apart") step_role_ = StepRole::kBeginsApart;
    if (step == "continues") step_role_ = StepRole::kContinues;
    if (!construction->HasAttr("plan")) return;
    OP_REQUIRES_OK(construction, construction->GetAttr("plan", &plan_));
  }

  Request NewRequest(CollectiveKind kind) const {
    Request request;
    request.kind = kind;
    request.name = request_name_;
    request.communicator_id = communicator_id_;
    request.step_role = step_role_;
    request.plan = plan_;
    return request;
  }

 private:
  std::string request_name_;
  int communicator_id_ = 0;
  StepRole step_role_ = StepRole::kNone;
  int64_t plan_ = 0;
};

// How an allreduce's data travel between hosts.
inline std::optional<DataType> WireDtypeOf(
    tensorflow::OpKernelConstruction* construction) {
  std::string name;
  const absl::Status found = construction->GetAttr("wire_dtype", &name);
  if (!found.ok()) construction->SetStatus(found);
  return DataTypeNamed(name);  // Of "none" there is no type.
}

}  // namespace ring_keras

#endif  // RING_KERAS_KERNELS_ATTRIBUTES_H_
