#include "tf_ops/runtime/engine.h"

#include <algorithm>
#include <chrono>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/stream_work.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/runtime/dump_signal.h"

namespace ring_keras {
namespace {

constexpr double kFlushTimeoutS = 1.0;

std::unique_ptr<DumpWriter> WriterFor(const std::string& trace_dir, int rank) {
  if (trace_dir.empty()) return nullptr;
  return std::make_unique<DumpWriter>(
      StrCat(trace_dir, "/rank", rank, ".trace"));
}

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<Mesh> mesh)
    : options_(options),
      mesh_(std::move(mesh)),
      launcher_([this] { WakeDriver(); }),
      matcher_(mesh_->size()),
      recorder_(mesh_->rank(), mesh_->size()),
      dump_writer_(WriterFor(options.trace_dir, mesh_->rank())) {
  (void)TakeDumpRequest();  // Of an earlier membership.
  for (int rank = 0; rank < mesh_->size(); ++rank) {
    if (rank == mesh_->rank()) continue;
    mesh_->pair(rank).set_control_handler(
        [this, rank](FrameType type, uint64_t key, std::string payload) {
          HandleControl(rank, type, key, std::move(payload));
        });
  }
  thread_ = std::thread([this] { ThreadMain(); });
}

void Engine::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    has_news_.store(true);
  }
  work_.notify_one();
  mesh_->Wake();
}

bool Engine::AwaitSent(double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                         [this] { return !mesh_->has_unsent(); });
}

Engine::~Engine() {
  Stop();
  thread_.join();
  for (auto& [id, member] : communicators_) {
    if (member == nullptr) continue;
    BreakIfLost(*member->communicator);
    const Status& status = member->communicator->status();
    if (!status.ok()) member->communicator->device()->Break(status);
  }
  launcher_.Stop();
  // Peers may still need what this rank sent last.
  const Deadline flushed = Deadline::After(kFlushTimeoutS);
  while (!mesh_->flushed() && !flushed.Expired()) {
    if (!mesh_->Pump()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  for (int rank = 0; rank < mesh_->size(); ++rank) {
    if (rank != mesh_->rank()) mesh_->pair(rank).CloseForWriting();
  }
}

int Engine::pending_count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return active_;
}

std::string Engine::broken_link() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_link_;
}

void Engine::AddCommunicator(int id, std::vector<int> ranks,
                             const Tuning& tuning) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Member>& member = communicators_[id];
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
  }
}

void Engine::RemoveCommunicator(int id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = communicators_.find(id);
  if (found == communicators_.end()) return;
  removed_.push_back(std::move(found->second));
  communicators_.erase(found);
  has_news_.store(true);
}

Status Engine::SplitDevices(int id, int device) {
  std::shared_ptr<nccl::DeviceCommunicator> part;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    part = DeviceOf(id);
  }
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
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, member] : communicators_) {
    if (member != nullptr) member->communicator->set_tuning(tuning);
  }
}

std::shared_ptr<nccl::DeviceCommunicator> Engine::DeviceOf(int id) const {
  const auto found = communicators_.find(id);
  if (found == communicators_.end() || found->second == nullptr) return nullptr;
  return found->second->communicator->device();
}

std::shared_ptr<Member> Engine::MemberOf(int id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second;
}

void Engine::OnRankEvent(const RankEvent& event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    has_news_.store(true);
  }
  mesh_->Wake();
}

bool Engine::TakeEvents() {
  std::vector<RankEvent> events;
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events.swap(events_);
    stopping = stopping_;
  }
  for (const RankEvent& event : events) {
    // In shared memory nothing else says that nobody reads any more.
    if (event.rank >= 0 && event.rank != mesh_->rank()) {
      mesh_->pair(event.rank).StopSending();
      mesh_->Forget(event.rank);
    }
    if (event.kind == RankEvent::Kind::kLost) {
      HandleLost(event);
    } else {
      left_.emplace(event.rank, std::make_pair(event, Clock::now()));
    }
  }
  if (stopping) {
    for (auto& operation : operations_) {
      const std::string what = StrCat("called shutdown() while ",
                                      operation->description(), " was pending");
      operation->communicator().Break(
          Status(StatusCode::kAborted, StrCat(own_name(), " ", what)));
      TellPeers(operation->communicator(),
                Status(StatusCode::kPeerLost, StrCat(own_name(), " ", what)));
    }
  }
  return !events.empty();
}

void Engine::BreakIfLost(Communicator& communicator) {
  for (const auto& [rank, why] : lost_) {
    if (rank < 0 || communicator.Contains(rank)) communicator.Break(why);
  }
}

}  // namespace ring_keras
