// An operation's way through the engine: accepted from the program, adopted by
// the driver, ended.
#include <utility>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

void Engine::PrepareDevice(Request& request) {
  if (request.device_work == nullptr || !request.able.ok()) return;
  std::shared_ptr<nccl::DeviceCommunicator> device;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    device = DeviceOf(request.communicator_id);
  }
  if (device == nullptr) return;  // Accept() says why.
  request.able = device->Prepare(request);
}

StatusOr<std::unique_ptr<Operation>> Engine::Accept(Request& request,
                                                    DoneCallback& done) {
  if (stopping_) {
    return Status(StatusCode::kAborted, "shutdown() has been called");
  }
  const auto found = communicators_.find(request.communicator_id);
  if (found == communicators_.end()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("there is no process set ", request.communicator_id,
                         ". Was it removed?"));
  }
  const std::shared_ptr<Member>& member = found->second;
  if (member == nullptr) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("rank ", mesh_->rank(), " is not in process set ",
               request.communicator_id, "; only its ranks may use it."));
  }
  if (member->in_join) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat(Describe(request.kind, request.name), ": rank ", mesh_->rank(),
               " is in join(), in which it brings nothing of its own. "
               "Enter it before, or when join() has returned."));
  }
  const bool joins = request.kind == CollectiveKind::kJoin;
  const bool begins_step = request.step_role == StepRole::kBegins;
  UseId use;
  use.communicator_id = request.communicator_id;
  if (request.step_role != StepRole::kNone) {
    use.step = begins_step ? member->NextStep() : member->step;
  }
  if (!driving_) member->names.ForgetUnused();
  NameUse& name = member->names.Of(request.name, use.in_step());
  use.sequence = name.next_sequence;
  use.name = std::move(request.name);
  auto operation = std::make_unique<Operation>(
      std::move(request), std::move(use), Operation::Standing{member->joins},
      member, name, std::move(done));
  // All that could throw has been done.
  operation->number = ++entered_;
  ++active_;
  ++name.next_sequence;
  name.last_step = operation->use().step;
  member->in_join = joins;
  if (begins_step) member->step = operation->use().step;
  return operation;
}

bool Engine::TakeAccepted() {
  std::vector<std::shared_ptr<Member>> removed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    adopting_.swap(accepted_);
    removed.swap(removed_);
    has_news_.store(!events_.empty() || stopping_ || !looks_.empty());
    for (auto& operation : adopting_) operation->member().names.ForgetUnused();
  }
  for (auto& operation : adopting_) {
    if (operation->is_join()) {
      BeginJoin(std::move(operation));
    } else {
      Adopt(std::move(operation));
    }
  }
  const bool any = !adopting_.empty();
  adopting_.clear();
  return any;
}

void Engine::Adopt(std::unique_ptr<Operation> adopted) {
  operations_.push_back(std::move(adopted));
  Operation& operation = *operations_.back();
  BreakIfLost(operation.communicator());
  operation.Watch(Clock::now(), options_.stall_warning_s);
  if (!operation.started()) operation.Start();
  if (!operation.use().in_step()) return;
  Member& member = operation.member();
  DropPastSteps(member, operation.use().step);
  if (std::exchange(member.has_new_wait, false)) FailLostSteps(member);
}

bool Engine::FinishEnded() {
  std::vector<std::unique_ptr<Operation>> ended;
  size_t kept = 0;
  for (auto& operation : operations_) {
    if (operation->ended()) {
      ended.push_back(std::move(operation));
    } else {
      operations_[kept++] = std::move(operation);
    }
  }
  if (ended.empty()) return false;
  operations_.resize(kept);
  for (auto& operation : ended) {
    if (operation->is_join()) FinishJoin(*operation);
    End(*operation, false);
    Joining* joining = JoiningOn(operation->communicator());
    if (joining != nullptr) AfterJoinedUse(*joining, *operation);
  }
  const int count = static_cast<int>(ended.size());
  ended.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  active_ -= count;
  ended_.notify_all();
  return true;
}

void Engine::End(Operation& operation, bool alone) {
  Communicator& communicator = operation.communicator();
  if (!operation.status().ok()) {
    if (operation.failed_alone()) communicator.Break(operation.status());
    const Status& broken = communicator.status();
    if (!broken.ok()) TellPeers(communicator, broken);
  }
  if (operation.use().in_step()) BeforeEndInStep(operation);
  operation.Record(alone);
  operation.Finish();
  if (operation.use().in_step()) EndChannelOfGivenUp(operation);
}

}  // namespace ring_keras
