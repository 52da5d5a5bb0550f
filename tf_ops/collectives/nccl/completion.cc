#include "tf_ops/collectives/nccl/completion.h"

#include <set>
#include <utility>

#include "tf_ops/common/logging.h"

namespace ring_keras::nccl {
namespace {

// What waits for a device in a stream waits on without us; all that is late by
// this much is the release of memory.
constexpr std::chrono::microseconds kNewsInterval{200};
// How long a device may take to end what it has of a broken communicator: its
// part in the collective ends at once, but compute before it may still run.
constexpr std::chrono::seconds kAbortGrace{30};

}  // namespace

void Completion::Start() {
  thread_ = std::thread([this] { Main(); });
}

void Completion::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  news_.notify_one();
  thread_.join();
}

void Completion::Watch(Launch* launch) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(launch);
  }
  news_.notify_one();
}

void Completion::Abort(std::shared_ptr<DeviceCommunicator> communicator) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_.push_back(std::move(communicator));
  }
  news_.notify_one();
}

void Completion::Main() {
  cuda::IgnoreCaptures();
  while (true) {
    std::vector<Launch*> watched;
    std::vector<std::shared_ptr<DeviceCommunicator>> broken;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto has_news = [this] {
        return stopping_ || !watched_.empty() || !broken_.empty();
      };
      if (flights_.empty()) {
        news_.wait(lock, has_news);
      } else {
        news_.wait_for(lock, kNewsInterval, has_news);
      }
      watched.swap(watched_);
      broken.swap(broken_);
      if (stopping_ && watched.empty() && broken.empty() && flights_.empty()) {
        break;
      }
    }
    for (Launch* launch : watched) {
      flights_[launch->communicator().device()].launches.push_back(launch);
    }
    // NCCL's abort waits for the stream, and so for other communicators' work
    // before it, which may end by their own abort alone: none waits for
    // another.
    for (auto& communicator : broken) {
      aborts_.emplace_back([communicator = std::move(communicator)] {
        cuda::IgnoreCaptures();
        communicator->Abort();
      });
    }
    bool ended = false;
    for (auto flight = flights_.begin(); flight != flights_.end();) {
      ended |= EndFinished(flight->first, flight->second);
      flight = flight->second.launches.empty() ? flights_.erase(flight)
                                               : std::next(flight);
    }
    if (ended) wake_();
  }
  for (std::thread& abort : aborts_) abort.join();
}

bool Completion::IsGivenUp(const Launch& first, Flight& flight) {
  const Clock::time_point now = Clock::now();
  if (std::exchange(flight.broken_first, &first) != &first) {
    flight.broken_since = now;
  }
  return now >= flight.broken_since + kAbortGrace;
}

bool Completion::EndFinished(int device, Flight& flight) {
  // Else the first call would give this thread a context on another device.
  cuda::GetRuntime().value()->SetDevice(device);
  // Whose first launch is not done, so that none of its later ones is.
  std::set<const DeviceCommunicator*> busy;
  std::deque<Launch*> kept;
  bool ended = false;
  for (Launch* at : flight.launches) {
    Launch& launch = *at;
    DeviceCommunicator& communicator = launch.communicator();
    if (busy.count(&communicator) > 0) {
      kept.push_back(&launch);
      continue;
    }
    communicator.CheckForErrors();
    const Status broken = communicator.status();
    StatusOr<bool> done = launch.work().IsDone();
    if (done.ok() && !done.value()) {
      // What waits for another communicator's launch cannot end yet.
      if (broken.ok() || !busy.empty() || !IsGivenUp(launch, flight)) {
        busy.insert(&communicator);
        kept.push_back(&launch);
        continue;
      }
      Log(LogLevel::kError,
          StrCat("the GPU has not ended a collective ", kAbortGrace.count(),
                 " s after it failed; its tensors are given up. The failure "
                 "was: ",
                 broken.message()));
    }
    // What a broken communicator leaves behind is not a result.
    const Status status = broken.ok() ? done.status() : broken;
    if (broken.ok() && !status.ok()) communicator.Break(status);
    if (flight.broken_first == &launch) flight.broken_first = nullptr;
    launch.SetEnded(status);
    ended = true;
  }
  flight.launches = std::move(kept);
  return ended;
}

}  // namespace ring_keras::nccl
