#include "tf_ops/collectives/nccl/launcher.h"

#include <sched.h>

#include <chrono>
#include <utility>

namespace ring_keras::nccl {
namespace {

// NCCL settles most calls within some of these turns.
constexpr int kYields = 200;
constexpr std::chrono::microseconds kInterval{50};

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

void Launcher::Main() {
  int idle_turns = 0;
  while (true) {
    bool progress = TakePosted();
    progress |= Advance();
    progress |= scheduler_.RunReady();
    if (progress) {
      idle_turns = 0;
      continue;
    }
    bool waits = false;
    for (const auto& [key, queue] : queues_) waits |= queue.task.has_value();
    if (waits && ++idle_turns < kYields) {
      sched_yield();
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const auto has_news = [this] {
      return stopping_ || !posted_.empty() || !closed_.empty();
    };
    if (waits) {
      news_.wait_for(lock, kInterval,
                     [&] { return !posted_.empty() || !closed_.empty(); });
    } else if (stopping_ && queues_.empty()) {
      return;
    } else {
      news_.wait(lock, has_news);
    }
  }
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
    QueueOf(launch->communicator().shared_from_this())
        .launches.push_back(launch);
    // A process set's communicator is made by a launch on another.
    if (DeviceCommunicator* part = launch->work().part()) {
      QueueOf(part->shared_from_this());
    }
  }
  for (const auto& communicator : closed) QueueOf(communicator).closing = true;
  if (stopping) {
    for (auto& [key, queue] : queues_) queue.closing = true;
  }
  return !posted.empty() || !closed.empty();
}

Launcher::Queue& Launcher::QueueOf(
    const std::shared_ptr<DeviceCommunicator>& communicator) {
  Queue& queue = queues_[communicator.get()];
  queue.communicator = communicator;
  return queue;
}

bool Launcher::Advance() {
  bool progress = false;
  for (auto at = queues_.begin(); at != queues_.end();) {
    Queue& queue = at->second;
    if (queue.task.has_value() && queue.task->done()) {
      queue.task.reset();
      progress = true;
      if (queue.launches.empty()) {
        at = queues_.erase(at);  // It was the closing.
        continue;
      }
      queue.launches.pop_front();
    }
    if (!queue.task.has_value() && (!queue.launches.empty() || queue.closing)) {
      queue.task.emplace(queue.launches.empty()
                             ? queue.communicator->Close()
                             : Carry(*queue.launches.front()));
      queue.task->Start();
      progress = true;
    }
    ++at;
  }
  return progress;
}

Task Launcher::Carry(Launch& launch) {
  DeviceCommunicator& communicator = launch.communicator();
  Task connect = communicator.Connect(launch.unique_id());
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
