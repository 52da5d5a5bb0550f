#include "tf_ops/collectives/nccl/launcher.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace ring_keras::nccl {
namespace {

// NCCL settles most calls within some of these turns.
constexpr int kYields = 200;
constexpr std::chrono::microseconds kPostInterval{50};

}  // namespace

Launcher::Launcher(std::function<void()> wake)
    : wake_(std::move(wake)), completion_(wake_) {}

Launcher::~Launcher() { Stop(); }

void Launcher::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (running_ || stopping_) return;
  running_ = true;
  completion_.Start();
  thread_ = std::thread([this] { Main(); });
}

void Launcher::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  news_.notify_one();
  if (thread_.joinable()) thread_.join();
  completion_.Stop();
}

void Launcher::Post(Launch* launch) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(launch);
  }
  news_.notify_one();
}

void Launcher::Close(const std::shared_ptr<DeviceCommunicator>& communicator) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!running_ || stopping_) return;  // Stop() closes all.
    closed_.push_back(communicator);
  }
  news_.notify_one();
}

void Launcher::Abort(std::shared_ptr<DeviceCommunicator> communicator) {
  completion_.Abort(std::move(communicator));
}

StatusOr<StreamHandle> Launcher::StreamOf(int device) {
  std::unique_ptr<cuda::Stream>& stream = streams_[device];
  if (stream == nullptr) {
    auto created = cuda::Stream::Create(device);
    RING_KERAS_RETURN_IF_ERROR(created.status());
    stream = std::move(created.value());
  }
  return stream->handle();
}

void Launcher::Main() {
  cuda::IgnoreCaptures();
  int idle_turns = 0;
  while (true) {
    bool progress = TakePosted();
    progress |= AdvanceLaunches();
    progress |= AdvanceClosings();
    progress |= scheduler_.RunReady();
    if (progress) {
      idle_turns = 0;
      continue;
    }
    const bool waits = Waits();
    if (waits && ++idle_turns < kYields) {
      sched_yield();
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_posted = [this] {
      return !posted_.empty() || !closed_.empty();
    };
    if (waits) {
      news_.wait_for(lock, kPostInterval, is_posted);
    } else if (stopping_ && known_.empty()) {
      break;
    } else {
      news_.wait(lock, [&] { return stopping_ || is_posted(); });
    }
  }
  streams_.clear();
}

bool Launcher::TakePosted() {
  std::vector<Launch*> posted;
  std::vector<std::shared_ptr<DeviceCommunicator>> closed;
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    posted.swap(posted_);
    closed.swap(closed_);
    stopping = stopping_;
  }
  for (Launch* launch : posted) {
    queue_.push_back({&launch->communicator(), launch});
    Know(launch->communicator().shared_from_this());
    // A process set's communicator is made by a launch on another.
    if (DeviceCommunicator* part = launch->work().part()) {
      Know(part->shared_from_this());
    }
  }
  for (const auto& communicator : closed) Know(communicator).is_closing = true;
  if (stopping) {
    for (auto& [key, known] : known_) known.is_closing = true;
  }
  return !posted.empty() || !closed.empty();
}

bool Launcher::AdvanceLaunches() {
  bool progress = false;
  if (launching_.has_value() && launching_->done()) {
    launching_.reset();
    queue_.pop_front();
    progress = true;
  }
  if (!launching_.has_value() && !queue_.empty()) {
    launching_.emplace(Carry(*queue_.front().launch));
    launching_->Start();
    progress = true;
  }
  return progress;
}

bool Launcher::AdvanceClosings() {
  bool progress = false;
  for (auto at = known_.begin(); at != known_.end();) {
    Known& known = at->second;
    const bool is_closed = known.closing.has_value() && known.closing->done();
    if (known.is_closing && !known.closing.has_value() &&
        !HasQueued(at->first)) {
      known.closing.emplace(known.communicator->Close());
      known.closing->Start();
      progress = true;
    }
    progress |= is_closed;
    at = is_closed ? known_.erase(at) : std::next(at);
  }
  return progress;
}

bool Launcher::HasQueued(const DeviceCommunicator* communicator) const {
  return std::any_of(queue_.begin(), queue_.end(), [&](const Queued& queued) {
    return queued.communicator == communicator;
  });
}

bool Launcher::Waits() const {
  return launching_.has_value() ||
         std::any_of(known_.begin(), known_.end(), [](const auto& known) {
           return known.second.closing.has_value();
         });
}

Launcher::Known& Launcher::Know(
    const std::shared_ptr<DeviceCommunicator>& communicator) {
  Known& known = known_[communicator.get()];
  known.communicator = communicator;
  return known;
}

Task Launcher::Carry(Launch& launch) {
  DeviceCommunicator& communicator = launch.communicator();
  const std::string unique_id = launch.unique_id();
  Task connect = communicator.Connect(unique_id);
  Status status = co_await connect;
  if (status.ok()) status = launch.work().Begin(communicator.stream());
  if (status.ok()) {
    Task enqueue = launch.Enqueue();
    status = co_await enqueue;
  }
  if (status.ok()) status = launch.work().End(communicator.stream());
  if (status.ok()) {
    launch.SetLaunched();
  } else {
    // Every rank has begun it: the others would wait for this one.
    communicator.Break(status);
    co_await Scheduler::Until(
        scheduler_, [&communicator] { return communicator.aborted(); });
    // What the device was given of it ends by itself now; if not even that can
    // be asked for, there is nothing to wait for.
    if (communicator.stream() != nullptr) {
      (void)launch.work().End(communicator.stream());
    }
    launch.Fail(status);
  }
  completion_.Watch(&launch);
  wake_();
  co_return Status::Ok();
}

}  // namespace ring_keras::nccl
