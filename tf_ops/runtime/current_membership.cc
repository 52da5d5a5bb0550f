#include "tf_ops/runtime/current_membership.h"

#include "tf_ops/runtime/membership_slot.h"
#include "tf_ops/runtime/runtime.h"

namespace ring_keras {

StatusOr<MembershipNumbers> CurrentMembership() {
  Runtime::Get();  // It makes the slot.
  return MembershipSlot::of_process->WithJob(
      [](Job& job) -> StatusOr<MembershipNumbers> {
        return MembershipNumbers{job.generation(), job.communicator_base()};
      });
}

Status UseCudaDevice(int device) {
  Runtime::Get();  // It makes the slot.
  return MembershipSlot::of_process->WithJob([&](Job& job) {
    job.UseCudaDevice(device);
    return Status::Ok();
  });
}

}  // namespace ring_keras
