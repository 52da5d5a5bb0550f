#include "tf_ops/runtime/engine.h"

#include <algorithm>
#include <chrono>

#include "tf_ops/collectives/nccl/device_communicator.h"
#include "tf_ops/collectives/nccl/stream_work.h"
#include "tf_ops/common/logging.h"
#include "tf_ops/common/pause.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras {
namespace {

constexpr int kSleepMilliseconds = 50;
constexpr double kFlushTimeoutS = 1.0;
// A turn is too short to look at the clock in each.
constexpr unsigned kTurnsPerClock = 64;

// Codes and texts of Status travel in kAbort frames.
std::string EncodeStatus(const Status& status) {
  return std::string(1, static_cast<char>(status.code())) + status.message();
}

Status DecodeStatus(const std::string& bytes) {
  if (bytes.empty()) return Status(StatusCode::kInternal, "aborted by a peer");
  return Status(static_cast<StatusCode>(bytes[0]), bytes.substr(1));
}

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<Mesh> mesh)
    : options_(options),
      mesh_(std::move(mesh)),
      launcher_([this] { WakeDriver(); }) {
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

void Engine::AddCommunicator(int id, std::vector<int> ranks,
                             const Tuning& tuning) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Member>& member = communicators_[id];
  if (std::find(ranks.begin(), ranks.end(), mesh_->rank()) != ranks.end()) {
    member = std::make_shared<Member>(std::make_shared<Communicator>(
        id, std::move(ranks), tuning, *mesh_, scheduler_));
    Communicator& communicator = *member->communicator;
    communicator.set_device(std::make_shared<nccl::DeviceCommunicator>(
        launcher_, communicator.rank(), communicator.size()));
  }
}

void Engine::SplitDevices(int id, int device) {
  std::shared_ptr<nccl::DeviceCommunicator> part;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    part = DeviceOf(id);
  }
  Request request;
  request.kind = CollectiveKind::kBarrier;
  request.name = StrCat("ring_keras/split_devices/", id);
  auto work = nccl::StreamWork::Split(device, std::move(part));
  // Without CUDA the ranks meet all the same, and see that they differ.
  if (work.ok()) request.device_work = std::move(work.value());
  Status split = Run(std::move(request));
  if (split.ok()) split = work.status();
  if (split.ok()) return;
  Log(LogLevel::kInfo,
      StrCat("process set ", id,
             " will connect its GPUs when it first needs them: ",
             split.message()));
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

void Engine::RemoveCommunicator(int id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = communicators_.find(id);
  if (found == communicators_.end()) return;
  removed_.push_back(std::move(found->second));
  communicators_.erase(found);
  has_news_.store(true);
}

void Engine::SetTuning(const Tuning& tuning) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, member] : communicators_) {
    if (member != nullptr) member->communicator->set_tuning(tuning);
  }
}

StatusOr<Engine::Submission> Engine::Accept(Request& request,
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
  member->in_join = request.kind == CollectiveKind::kJoin;
  if (request.step_role == StepRole::kBegins) member->BeginStep();
  UseId use;
  use.communicator_id = request.communicator_id;
  if (request.step_role != StepRole::kNone) use.step = member->step;
  NameUse& name = member->NameOf(request.name, use.in_step());
  use.sequence = name.next_sequence++;
  use.name = std::move(request.name);
  name.last_step = use.step;
  ++active_;
  return std::make_unique<Operation>(std::move(request), std::move(use),
                                     Operation::Standing{member->joins}, member,
                                     name, std::move(done));
}

void Engine::Submit(Request request, DoneCallback done, double patience_s) {
  PrepareDevice(request);
  std::unique_lock<std::mutex> lock(mutex_);
  StatusOr<Submission> accepted = Accept(request, done);
  if (!accepted.ok()) {
    lock.unlock();
    done(accepted.status());
    return;
  }
  Submission operation = std::move(accepted.value());
  if (patience_s > 0 && IsAlone(*operation)) {
    operation = TryAlone(std::move(operation), patience_s, lock);
    StopDriving();
    if (operation == nullptr) return;
  }
  submissions_.push_back(std::move(operation));
  has_news_.store(true);
  const bool driving = driving_;
  lock.unlock();
  if (!driving) {
    work_.notify_one();
  } else if (asleep_.load()) {
    mesh_->Wake();
  }
}

Status Engine::Run(Request request) {
  const int communicator_id = request.communicator_id;
  std::atomic<bool> ended{false};
  Status result;
  DoneCallback done = [&](const Status& status) {
    result = status;
    ended.store(true, std::memory_order_release);
  };
  PrepareDevice(request);
  std::unique_lock<std::mutex> lock(mutex_);
  StatusOr<Submission> accepted = Accept(request, done);
  RING_KERAS_RETURN_IF_ERROR(accepted.status());
  Submission operation = std::move(accepted.value());
  bool is_driver = IsAlone(*operation);
  if (is_driver) {
    operation = TryAlone(std::move(operation), options_.patience_s, lock);
  }
  if (operation != nullptr) {
    submissions_.push_back(std::move(operation));
    has_news_.store(true);
  }
  const auto has_ended = [&] { return ended.load(std::memory_order_acquire); };
  if (!has_ended() && (is_driver || !driving_)) {
    is_driver = driving_ = true;
    lock.unlock();
    // A driver handles no signals: a handler may take long, and its peers would
    // wait. Soon it leaves a wait that is long to the engine's thread.
    const unsigned first_watch = watches_;
    DriveUntil([&] { return has_ended() || watches_ - first_watch > 1; });
    lock.lock();
  }
  if (is_driver) StopDriving();
  if (!has_ended() && asleep_.load()) mesh_->Wake();
  while (!has_ended()) {
    if (ended_.wait_for(lock, kSignalInterval, has_ended)) break;
    lock.unlock();
    if (HandleSignals()) Interrupt(communicator_id);
    lock.lock();
  }
  return result;
}

// A join never is: it reads and answers what its peers announce.
bool Engine::IsAlone(const Operation& operation) const {
  return active_ == 1 && !driving_ && !operation.is_join() &&
         !has_news_.load(std::memory_order_relaxed);
}

Engine::Submission Engine::TryAlone(Submission operation, double patience_s,
                                    std::unique_lock<std::mutex>& lock) {
  driving_ = true;
  lock.unlock();
  BreakIfLost(operation->communicator());
  scheduler_.BePatient(std::chrono::duration_cast<Scheduler::Clock::duration>(
                           std::chrono::duration<double>(patience_s)),
                       &has_news_);
  operation->Start();
  scheduler_.BeImpatient();
  const bool ended = operation->ended();
  if (ended) {
    // What ends before its peers are heard of has failed.
    if (!operation->status().ok()) JoinEarly(*operation);
    End(*operation);
    operation.reset();
  }
  lock.lock();
  if (ended) --active_;
  return operation;
}

void Engine::WakeDriver() {
  if (asleep_.load()) mesh_->Wake();
}

// The caller holds mutex_. Whoever still has something to do takes over.
void Engine::StopDriving() {
  driving_ = false;
  ended_.notify_all();
  if (active_ > 0 || stopping_) work_.notify_one();
}

void Engine::OnRankEvent(const RankEvent& event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    has_news_.store(true);
  }
  mesh_->Wake();
}

void Engine::ThreadMain() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return !driving_ && (active_ > 0 || stopping_); });
    if (active_ == 0 && stopping_) return;
    driving_ = true;
    lock.unlock();
    DriveUntil([this] {
      std::lock_guard<std::mutex> inner(mutex_);
      return active_ == 0;
    });
    lock.lock();
    StopDriving();
  }
}

template <typename Condition>
void Engine::DriveUntil(Condition condition) {
  for (unsigned turn = 1; !condition(); ++turn) {
    const bool progress = Poll();
    // Deadlines hold for one collective while others keep the driver busy.
    if (turn % kTurnsPerClock == 0 && Clock::now() >= next_watch_) Watch();
    if (progress) {
      patience_.OnProgress();
      continue;
    }
    const Patience::Step step = patience_.Next();
    if (step == Patience::Step::kLook) {
      Pause();
      continue;
    }
    if (step == Patience::Step::kYield) {
      patience_.Yield();
      continue;
    }
    patience_.OnSleep();
    if (Clock::now() >= next_watch_) Watch();
    asleep_.store(true);
    mesh_->Sleep(kSleepMilliseconds, [this] {
      return has_news_.load() || mesh_->Pump() || scheduler_.AnyReady();
    });
    asleep_.store(false);
  }
}

bool Engine::Poll() {
  bool progress = false;
  if (has_news_.load(std::memory_order_acquire)) {
    progress |= TakeEvents();
    progress |= TakeSubmissions();
    TakeInterrupts();
  }
  progress |= mesh_->Pump();
  if (!joins_.empty()) progress |= ServeJoins();
  if (scheduler_.RunReady()) {
    progress = true;
    FailNewLostWaits();
  }
  progress |= FinishEnded();
  return progress;
}

bool Engine::TakeSubmissions() {
  std::vector<Submission> submissions;
  std::vector<std::shared_ptr<Member>> removed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    submissions.swap(submissions_);
    removed.swap(removed_);
    has_news_.store(!events_.empty() || stopping_);
  }
  for (Submission& submission : submissions) {
    if (submission->is_join()) {
      BeginJoin(std::move(submission));
    } else {
      Adopt(std::move(submission));
    }
  }
  return !submissions.empty();
}

void Engine::BreakIfLost(Communicator& communicator) {
  for (const auto& [rank, why] : lost_) {
    if (rank < 0 || communicator.Contains(rank)) communicator.Break(why);
  }
}

void Engine::Adopt(Submission submission) {
  operations_.push_back(std::move(submission));
  Operation& operation = *operations_.back();
  Communicator& communicator = operation.communicator();
  BreakIfLost(communicator);
  operation.Watch(Clock::now(), options_.stall_warning_s);
  by_key_[operation.key()] = &operation;
  JoinEarly(operation);
  if (!operation.started()) operation.Start();
  if (!operation.use().in_step()) return;
  DropPastSteps(operation.member(), operation.use().step);
  FailLostSteps(operation.member());
}

void Engine::JoinEarly(Operation& operation) {
  auto early = early_.find(operation.key());
  if (early == early_.end()) return;
  const std::vector<Early> peers = std::move(early->second);
  early_.erase(early);
  for (const Early& peer : peers) {
    Deliver(peer.job_rank, peer.announcement, operation);
  }
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
    if (event.kind == RankEvent::Kind::kLost) {
      HandleLost(event);
    } else {
      left_.emplace(event.rank, std::make_pair(event, Clock::now()));
    }
  }
  if (stopping) {
    for (auto& operation : operations_) {
      const std::string what = StrCat("called shutdown() while ",
                                      operation->title(), " was pending");
      operation->communicator().Break(
          Status(StatusCode::kAborted,
                 StrCat(options_.rank_titles[mesh_->rank()], " ", what)));
      TellPeers(operation->communicator(),
                Status(StatusCode::kPeerLost,
                       StrCat(options_.rank_titles[mesh_->rank()], " ", what)));
    }
  }
  return !events.empty();
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
    by_key_.erase(operation->key());
    if (operation->is_join()) FinishJoin(*operation);
    End(*operation);
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

void Engine::End(Operation& operation) {
  if (!operation.status().ok()) {
    // Of steps, IsPast() knows.
    const int unread = operation.unread_announcements();
    if (unread > 0 && !operation.use().in_step()) {
      abandoned_[operation.key()] = unread;
    }
    const Status& broken = operation.communicator().status();
    if (!broken.ok()) TellPeers(operation.communicator(), broken);
  }
  if (operation.use().in_step()) BeforeEndInStep(operation);
  operation.Finish();
  if (operation.use().in_step()) EndChannelOfGivenUp(operation);
}

void Engine::HandleControl(int job_rank, FrameType type, uint64_t key,
                           std::string payload) {
  switch (type) {
    case FrameType::kAnnouncement:
      return HandleAnnouncement(job_rank, key, payload);
    case FrameType::kAbort:
      return HandleAbort(static_cast<int>(key), payload);
    case FrameType::kGivenUp:
      return HandleGivenUp(job_rank, static_cast<int>(key), payload);
    case FrameType::kData:
      break;  // Is the pair's own.
  }
}

void Engine::HandleAbort(int communicator_id, const std::string& bytes) {
  const std::shared_ptr<Member> member = MemberOf(communicator_id);
  if (member == nullptr) return;
  // End() passes it on: the one who tells may not reach all.
  member->communicator->Break(DecodeStatus(bytes));
}

void Engine::HandleAnnouncement(int job_rank, uint64_t key,
                                const std::string& bytes) {
  StatusOr<Announcement> decoded = DecodeAnnouncement(bytes);
  if (!decoded.ok()) {
    BreakSharedWith(job_rank, Status(decoded.status().code(),
                                     StrCat("from rank ", job_rank, " to rank ",
                                            mesh_->rank(), ": ",
                                            decoded.status().message())));
    return;
  }
  Announcement& announcement = decoded.value();
  std::shared_ptr<Member> member;
  if (announcement.use.in_step()) {
    member = MemberOf(announcement.use.communicator_id);
    if (member == nullptr || !member->communicator->Contains(job_rank)) return;
    member->steps.OnAnnounced(member->communicator->PlaceOf(job_rank),
                              announcement.use.step);
  }
  const auto abandoned = abandoned_.find(key);
  const auto found = by_key_.find(key);
  if (abandoned != abandoned_.end()) {
    if (--abandoned->second == 0) abandoned_.erase(abandoned);
    PassLaunch(announcement);
  } else if (found != by_key_.end()) {
    Deliver(job_rank, std::move(announcement), *found->second);
  } else if (member != nullptr && IsPast(*member, announcement)) {
    PassLaunch(announcement);
  } else {
    early_[key].push_back({job_rank, std::move(announcement)});
  }
  if (member != nullptr) FailLostSteps(*member);
}

void Engine::Deliver(int job_rank, Announcement announcement,
                     Operation& operation) {
  Communicator& communicator = operation.communicator();
  if (!announcement.use.Meets(operation.use())) {
    const std::string other =
        Describe(announcement.kind, announcement.use.name);
    const Status why(
        StatusCode::kInternal,
        StrCat(operation.title(), " and ", other, " of rank ", job_rank,
               " have the same number. Rename one of them."));
    communicator.Break(why);
    return TellPeers(communicator, why);
  }
  if (!communicator.Contains(job_rank)) return;
  operation.Join(communicator.PlaceOf(job_rank), std::move(announcement));
}

// Its collective has ended here already, or never begins.
void Engine::PassLaunch(const Announcement& announcement) {
  if (announcement.launch_number == LaunchOrder::kNoNumber) return;
  const auto member = MemberOf(announcement.use.communicator_id);
  if (member == nullptr) return;
  member->communicator->launch_order().Pass(announcement.launch_number);
}

void Engine::TellPeers(Communicator& communicator, const Status& why) {
  if (std::exchange(told_[communicator.id()], true)) return;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank()) continue;
    communicator.pair(rank).SendControl(FrameType::kAbort, communicator.id(),
                                        EncodeStatus(why));
  }
}

}  // namespace ring_keras
