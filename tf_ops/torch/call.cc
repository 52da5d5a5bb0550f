#include "tf_ops/torch/call.h"

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/completions.h"

namespace ring_keras::torch_backend {

RingBackend::Call::Call(RingBackend& backend, const Meeting& meeting,
                        c10d::OpType type, const char* name, bool waits,
                        std::chrono::milliseconds timeout, Tensors results)
    : waits_(waits),
      engine_is_first_(timeout >= backend.engine_timeout_),
      pending_(meeting.pending),
      communicator_id_(meeting.communicator_id),
      work_(c10::make_intrusive<RingWork>(
          backend.getRank(), type, name, std::move(results),
          meeting.communicator_id, meeting.deadlines,
          engine_is_first_ ? std::make_shared<Deadline>()
                           : meeting.deadlines->Add(timeout))) {
  ++backend.calls_;
}

Request& RingBackend::Call::Add(CollectiveKind kind, std::string name,
                                const at::Tensor& tensor) {
  Request& request = requests_.emplace_back();
  request.kind = kind;
  request.name = std::move(name);
  if (tensor.defined()) request.plan = PlanOf(tensor);
  request.communicator_id = communicator_id_;
  request.blocks = waits_;
  request.awaited_since = &work_->awaited_since();
  return request;
}

RingBackend::WorkPtr RingBackend::Call::Submit() {
  work_->Expect(static_cast<int>(requests_.size()));
  work_->Finally([kept = std::move(kept_), contiguous = std::move(contiguous_),
                  then = std::move(then_)] {
    contiguous.CopyBack();
    if (then) then();
  });
  for (Request& request : requests_) {
    if (waits_ && engine_is_first_) {
      const Status status = Runtime::Get().Run(std::move(request));
      work_->EndInEngine();
      work_->End(status);
      continue;
    }
    ++*pending_;
    Runtime::Get().Submit(
        std::move(request),
        [work = work_, pending = pending_](const Status& status) mutable {
          --*pending;
          work->EndInEngine();
          RunOnThread([work = std::move(work), status] { work->End(status); });
        });
  }
  return work_;
}

}  // namespace ring_keras::torch_backend
