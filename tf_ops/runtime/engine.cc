#include "tf_ops/runtime/engine.h"

#include <algorithm>
#include <chrono>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/stream_work.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/matching/signature.h"
#include "tf_ops/runtime/communicator_id.h"

namespace ring_keras {
namespace {

constexpr double kFlushTimeoutS = 1.0;

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<Mesh> mesh)
    : number_([] {
        static std::atomic<uint64_t> made{0};
        return ++made;
      }()),
      options_(options),
      mesh_(std::move(mesh)),
      launcher_([this] { WakeDriver(); }),
      matcher_(mesh_->size()),
      recorder_(mesh_->rank(), mesh_->size()),
      progress_(options_, *mesh_, scheduler_, matcher_, recorder_, shared_),
      backoff_(mesh_->is_woken()) {
  thread_ = std::thread([this] { ThreadMain(); });
}

void Engine::Stop(const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    shared_.queue.Stop(why);
  }
  work_.notify_one();
  mesh_->Wake();
}

void Engine::AwaitStopTold(double timeout_s) {
  std::unique_lock<std::mutex> lock(shared_.mutex);
  shared_.ended.wait_for(
      lock, std::chrono::duration<double>(timeout_s),
      [this] { return shared_.active == 0 || shared_.has_told_stop; });
}

// The engine's thread may have ended, or leave what is unsent to the next one.
bool Engine::AwaitSent(double timeout_s) {
  const Deadline deadline = Deadline::After(timeout_s);
  while (mesh_->has_unsent()) {
    if (deadline.Expired()) return false;
    WithDriver([this] { mesh_->Pump(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

Engine::~Engine() {
  Stop();
  thread_.join();
  progress_.CarryOutBreaks();
  for (auto& [id, member] : shared_.members) {
    if (member == nullptr) continue;
    progress_.BreakIfLost(*member->communicator);
    const Status& status = member->communicator->status();
    if (!status.ok()) member->communicator->device()->Break(status);
  }
  launcher_.Stop();
  // Peers may still need what this rank sent last.
  const Deadline flushed = Deadline::After(kFlushTimeoutS);
  while (!mesh_->flushed() && !flushed.Expired()) {
    if (!mesh_->Pump() && !progress_.CarryOutBreaks()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  for (int rank = 0; rank < mesh_->size(); ++rank) {
    if (rank != mesh_->rank()) mesh_->pair(rank).CloseForWriting();
  }
}

int Engine::pending_count() const {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  return shared_.active;
}

std::string Engine::broken_link() const {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  return shared_.broken_link;
}

void Engine::AddCommunicator(int id, std::vector<int> ranks,
                             const Tuning& tuning) {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  std::shared_ptr<Member>& member = shared_.members[id];
  if (id < kFirstOfMembers) shared_.newest_id = std::max(shared_.newest_id, id);
  if (std::find(ranks.begin(), ranks.end(), mesh_->rank()) != ranks.end()) {
    member = std::make_shared<Member>(
        std::make_shared<Communicator>(id, std::move(ranks), tuning, *mesh_,
                                       scheduler_),
        matcher_, recorder_);
    Communicator& communicator = *member->communicator;
    communicator.set_device(
        std::make_shared<nccl::DeviceCommunicator>(
            launcher_, communicator.rank(), communicator.size()),
        launch_order_);
    const auto broken = shared_.broken_before.find(id);
    if (broken == shared_.broken_before.end()) return;
    communicator.Break(broken->second);
    shared_.broken_before.erase(broken);
  }
}

void Engine::RemoveCommunicator(int id) {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  const auto found = shared_.members.find(id);
  if (found == shared_.members.end()) return;
  shared_.queue.Add(std::move(found->second));
  shared_.members.erase(found);
}

Status Engine::SplitDevices(int id, int device) {
  std::shared_ptr<nccl::DeviceCommunicator> part = shared_.DeviceOf(id);
  Request request;
  request.kind = CollectiveKind::kBarrier;
  request.name = StrCat("ring_keras/split_devices/", id);
  auto work = nccl::StreamWork::Split(device, std::move(part));
  Status able = work.status();
  if (able.ok()) {
    request.device_work = std::move(work.value());
    PrepareDevice(request);
    able = std::exchange(request.able, Status::Ok());
  }
  // A rank without CUDA or NCCL meets the others all the same, so that they see
  // that they differ.
  if (!able.ok()) request.device_work = nullptr;
  const Status split = Run(std::move(request));
  if (!split.ok() && split.code() != StatusCode::kRankMismatch) return split;
  const Status& why = able.ok() ? split : able;
  if (!why.ok()) {
    Log(LogLevel::kInfo,
        StrCat("process set ", id,
               " will connect its GPUs when it first needs them: ",
               why.message()));
  }
  return Status::Ok();
}

void Engine::SetTuning(const Tuning& tuning) {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  for (auto& [id, member] : shared_.members) {
    if (member != nullptr) member->communicator->set_tuning(tuning);
  }
}

void Engine::Interrupt(int communicator_id) {
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    if (shared_.active == 0) return;
    shared_.queue.Add(InterruptedWait{communicator_id, shared_.entered});
  }
  work_.notify_one();
  WakeDriver();
}

void Engine::GiveUpStep(int communicator_id, const std::string& why,
                        const GiveUpOptions& options) {
  const std::shared_ptr<Member> member = shared_.MemberOf(communicator_id);
  if (member == nullptr) return;
  WithDriver([&] { progress_.GiveUpStep(*member, why, options); });
}

void Engine::ForgetGivenUp(int communicator_id) {
  std::lock_guard<std::mutex> lock(shared_.mutex);
  const auto found = shared_.members.find(communicator_id);
  if (found == shared_.members.end() || found->second == nullptr) return;
  found->second->reported = true;
  found->second->heard = false;
}

void Engine::OnRankEvent(const RankEvent& event) {
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    shared_.queue.Add(event);
  }
  mesh_->Wake();
}

void Engine::Dump(const std::string& why) {
  WithDriver([&] {
    progress_.WriteDump(DumpCause::kOther, why,
                        ProgressEngine::Asker::kThisRank);
  });
  progress_.AwaitDumps();
}

StatusOr<int> Engine::FirstAwaited(
    const std::vector<std::pair<int, std::string>>& names) {
  StatusOr<int> first = -1;
  WithDriver([&] {
    mesh_->Pump();
    Status problem;  // The first.
    bool may_come = names.empty();
    for (size_t i = 0; i < names.size(); ++i) {
      const StatusOr<bool> awaited = IsAwaited(names[i].first, names[i].second);
      if (awaited.ok() && awaited.value()) {
        first = static_cast<int>(i);
        return;
      }
      may_come |= awaited.ok();
      if (problem.ok()) problem = awaited.status();
    }
    const bool is_lost = problem.error_code() == ErrorCode::kRankLost;
    if (!may_come || is_lost) first = problem;
  });
  return first;
}

StatusOr<bool> Engine::IsAwaited(int communicator_id, const std::string& name) {
  const std::shared_ptr<Member> member = shared_.MemberOf(communicator_id);
  if (member == nullptr) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("there is no process set ", communicator_id, "."));
  }
  Communicator& communicator = *member->communicator;
  progress_.BreakIfLost(communicator);
  RING_KERAS_RETURN_IF_ERROR(communicator.status());
  NameUse* use = nullptr;
  {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    use = member->names.Find(name);
    // One of this rank's is on its way to meet what a peer has entered.
    if (use != nullptr && !use->IsIdle()) return false;
  }
  UseId id;
  id.communicator_id = communicator_id;
  id.name = name;
  if (matcher_.HasKept(KeyOf(id))) return true;
  const bool has_channel =
      use != nullptr && use->channel != nullptr && !use->channel->ended();
  const RankEvent* leave = nullptr;
  for (int place = 0; place < communicator.size(); ++place) {
    if (place == communicator.rank()) continue;
    if (has_channel && use->channel->posts().IsAhead(place)) return true;
    leave = progress_.LeaveOf(communicator.ranks()[place]);
  }
  if (leave == nullptr) return false;
  return Status(
      StatusCode::kPeerLost, ErrorCode::kRankLeft,
      StrCat(leave->description, "; this rank still waits for any to send."));
}

void Engine::PrepareDevice(Request& request) {
  if (request.device_work == nullptr || !request.able.ok()) return;
  const std::shared_ptr<nccl::DeviceCommunicator> device =
      shared_.DeviceOf(request.communicator_id);
  if (device == nullptr) return;  // Accept() says why.
  request.able = device->Prepare(request);
}

StatusOr<std::unique_ptr<Operation>> Engine::Accept(Request& request,
                                                    DoneCallback& done) {
  if (shared_.queue.stopping()) {
    return Status(StatusCode::kAborted, "shutdown() has been called");
  }
  const auto found = shared_.members.find(request.communicator_id);
  if (found == shared_.members.end()) {
    return Status(StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
                  StrCat("there is no process set ", request.communicator_id,
                         ". Was it removed?"));
  }
  const std::shared_ptr<Member>& member = found->second;
  if (member == nullptr) {
    return Status(
        StatusCode::kInvalidArgument, ErrorCode::kBadProcessSet,
        StrCat("rank ", mesh_->rank(), " is not in process set ",
               request.communicator_id, "; only its ranks may use it."));
  }
  if (member->in_join) {
    return Status(
        StatusCode::kInvalidArgument, ErrorCode::kInJoin,
        StrCat(Describe(request.kind, request.name), ": rank ", mesh_->rank(),
               " is in join(), in which it brings nothing of its own. "
               "Enter it before, or when join() has returned."));
  }
  const bool joins = request.kind == CollectiveKind::kJoin;
  const bool begins_step = Begins(request.step_role);
  UseId use;
  use.communicator_id = request.communicator_id;
  if (request.step_role != StepRole::kNone) {
    const bool is_next =
        begins_step || request.step_role == StepRole::kPrecedes;
    use.step = is_next ? member->NextStep() : member->step;
  }
  if (!driving_) member->names.ForgetUnused();
  NameUse& name = member->names.Of(request.name, use.in_step());
  use.sequence = name.next_sequence;
  use.name = std::move(request.name);
  Operation::Standing standing{member->joins};
  standing.is_given_up = use.in_step() && use.step <= member->given_up;
  auto operation =
      std::make_unique<Operation>(std::move(request), std::move(use), standing,
                                  member, name, std::move(done));
  // All that could throw has been done.
  operation->number = ++shared_.entered;
  ++shared_.active;
  ++name.next_sequence;
  name.last_step = operation->use().step;
  member->in_join = joins;
  if (begins_step) {
    member->step = operation->use().step;
    member->heard = member->heard && member->step <= member->given_up;
  }
  return operation;
}

}  // namespace ring_keras
