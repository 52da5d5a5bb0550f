#include "tf_ops/torch/call.h"

#include <c10/core/DeviceGuard.h>

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/completions.h"

namespace ring_keras::torch_backend {

// A request on a GPU's tensors, which torch may use before it is over.
class RingBackend::Call::OnDevice {
 public:
  OnDevice(c10::intrusive_ptr<RingWork> work,
           std::shared_ptr<const Tensors> memory,
           std::shared_ptr<UnderWay> under_way)
      : work_(std::move(work)),
        memory_(std::move(memory)),
        under_way_(std::move(under_way)) {
    ++under_way_->requests;
  }

  // The engine calls these, one after the other. The first may be left out.
  void Launched() {
    is_launched_ = true;
    ++under_way_->on_device;
    --under_way_->requests;
    RunOnThread([work = work_] { work->End(Status::Ok()); });
  }
  void Done(const Status& status) {
    if (!status.ok()) work_->Fail(status);
    work_->EndInEngine();
    --(is_launched_ ? under_way_->on_device : under_way_->requests);
    // Nothing is left here: who destroys the request must not wait for Python.
    RunOnThread([work = std::move(work_), memory = std::move(memory_), status,
                 was_launched = is_launched_] {
      if (!was_launched) work->End(status);
    });
  }

 private:
  c10::intrusive_ptr<RingWork> work_;
  std::shared_ptr<const Tensors> memory_;
  const std::shared_ptr<UnderWay> under_way_;
  bool is_launched_ = false;
};

RingBackend::Call::Call(RingBackend& backend, const Meeting& meeting,
                        c10d::OpType type, const char* name, bool waits,
                        std::chrono::milliseconds timeout, Tensors results)
    : waits_(waits),
      engine_is_first_(timeout >= backend.engine_timeout_),
      under_way_(meeting.under_way),
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
  if (tensor.defined()) {
    request.plan = PlanOf(tensor);
    if (tensor.is_cuda() && !streams_.has_value()) {
      streams_.emplace(tensor.device());
    }
  }
  request.communicator_id = communicator_id_;
  request.blocks = waits_;
  request.awaited_since = &work_->awaited_since();
  return request;
}

RingBackend::WorkPtr RingBackend::Call::Submit() {
  // The engine makes a device the thread's current one.
  c10::OptionalDeviceGuard guard;
  if (streams_.has_value()) guard.reset_device(streams_->device());
  const auto memory = std::make_shared<const Tensors>(std::move(kept_));
  work_->Expect(static_cast<int>(requests_.size()), streams_);
  if (!streams_.has_value() || !contiguous_.empty() || then_) {
    work_->Finally([memory, streams = streams_,
                    contiguous = std::move(contiguous_),
                    then = std::move(then_), results = work_->result()] {
      if (streams.has_value()) {
        streams->Use(*memory);
        streams->Use(results);
      }
      contiguous.CopyBack();
      if (then) then();
    });
  }
  for (Request& request : requests_) {
    if (streams_.has_value()) {
      SubmitOnDevice(std::move(request), memory);
    } else {
      SubmitInHost(std::move(request));
    }
  }
  return work_;
}

void RingBackend::Call::SubmitInHost(Request request) {
  if (waits_ && engine_is_first_) {
    const Status status = Runtime::Get().Run(std::move(request));
    work_->EndInEngine();
    work_->End(status);
    return;
  }
  ++under_way_->requests;
  Runtime::Get().Submit(
      std::move(request),
      [work = work_, under_way = under_way_](const Status& status) mutable {
        --under_way->requests;
        work->EndInEngine();
        RunOnThread([work = std::move(work), status] { work->End(status); });
      });
}

void RingBackend::Call::SubmitOnDevice(
    Request request, const std::shared_ptr<const Tensors>& memory) {
  auto device_work = streams_->Begin();
  if (device_work.ok()) {
    work_->Follows(device_work.value());
    request.device_work = std::move(device_work.value());
  } else {
    request.able = device_work.status();  // So that the peers do not wait.
  }
  const auto on_device = std::make_shared<OnDevice>(work_, memory, under_way_);
  request.launched = [on_device] { on_device->Launched(); };
  Runtime::Get().Submit(std::move(request), [on_device](const Status& status) {
    on_device->Done(status);
  });
}

}  // namespace ring_keras::torch_backend
