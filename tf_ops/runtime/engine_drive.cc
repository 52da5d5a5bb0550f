// Who drives, and how one driver hands over to the next.
//
// There are three ways, besides calls that end at once (engine_at_once.cc). A
// call with nothing else under way tries its operation
// alone: no queue, no other thread (TryAlone). A blocking call whose operation
// takes longer drives everything until that has ended, or for some time
// (Run). All that is left is driven by the engine's own thread (ThreadMain).
//
// Why that is safe:
// 1. `driving_` changes under the mutex only, and only who has set it touches
//    what is the driver's own. So each driver sees all that the one before did.
// 2. Nothing is left without a driver: who stops driving wakes the blocked
//    callers, and the engine's thread if an operation has not ended, or a peer
//    has not taken all that was queued for it; that drives until neither is so.
//    An operation may end here before its peers know all that they need for it,
//    or why it failed.
// 3. No news is missed. It is put in the queue, which sets has_news(), and then
//    asleep_ is looked at. A driver sets asleep_, then looks at has_news(),
//    then sleeps. Whichever store comes first, one of the two sees the other's:
//    the atomics are sequentially consistent.
// 4. No exception leaves an engine in use behind: what drives is noexcept. The
//    algorithms catch their own (task.h); for the rest there is no memory, and
//    an end that peers notice is better than an engine that nobody drives.
#include <algorithm>
#include <chrono>

#include "tf_ops/common/pause.h"
#include "tf_ops/runtime/engine.h"
#include "tf_ops/runtime/signals.h"

namespace ring_keras {
namespace {

constexpr int kSleepMilliseconds = 50;
// How often a rank with nothing to do reads what its peers say.
constexpr std::chrono::milliseconds kIdleLookInterval(1000);
// The same where it passes on what others say.
constexpr std::chrono::milliseconds kRelayLookInterval(200);
// A turn is too short to look at the clock in each.
constexpr unsigned kTurnsPerClock = 64;
// Peers may send without end.
constexpr int kMaxIdleTurns = 64;

}  // namespace

void Engine::Submit(Request request, DoneCallback done, double drive_for_s) {
  PrepareDevice(request);
  std::unique_lock<std::mutex> lock(shared_.mutex);
  StatusOr<std::unique_ptr<Operation>> accepted = Accept(request, done);
  if (!accepted.ok()) {
    lock.unlock();
    done(accepted.status());
    return;
  }
  std::unique_ptr<Operation> operation = std::move(accepted.value());
  if (drive_for_s > 0 && IsAlone(*operation)) {
    TryAlone(std::move(operation), drive_for_s, lock);
    return StopDriving();
  }
  Enqueue(std::move(operation));
  const bool driving = driving_;
  lock.unlock();
  if (!driving) {
    work_.notify_one();
  } else if (asleep_.load()) {
    mesh_->Wake();
  }
}

Status Engine::Run(Request request) {
  request.blocks = true;
  const int communicator_id = request.communicator_id;
  std::atomic<bool> ended{false};
  Status result;
  DoneCallback done = [&](const Status& status) {
    result = status;
    ended.store(true, std::memory_order_release);
  };
  PrepareDevice(request);
  std::unique_lock<std::mutex> lock(shared_.mutex);
  StatusOr<std::unique_ptr<Operation>> accepted = Accept(request, done);
  RING_KERAS_RETURN_IF_ERROR(accepted.status());
  Await(std::move(accepted.value()), communicator_id, ended, lock);
  return result;
}

void Engine::Await(std::unique_ptr<Operation> operation, int communicator_id,
                   const std::atomic<bool>& ended,
                   std::unique_lock<std::mutex>& lock) {
  bool is_driver = IsAlone(*operation);
  if (is_driver) {
    TryAlone(std::move(operation), options_.drive_alone_s, lock);
  } else {
    Enqueue(std::move(operation));
  }
  const auto has_ended = [&] { return ended.load(std::memory_order_acquire); };
  if (!has_ended() && (is_driver || !driving_)) {
    is_driver = driving_ = true;
    lock.unlock();
    // A driver handles no signals: a handler may take long, and its peers would
    // wait. Soon it leaves a wait that is long to the engine's thread.
    const unsigned first_watch = progress_.watches();
    DriveUntil(
        [&] { return has_ended() || progress_.watches() - first_watch > 1; });
    lock.lock();
  }
  if (is_driver) StopDriving();
  if (!has_ended() && asleep_.load()) mesh_->Wake();
  while (!has_ended()) {
    if (shared_.ended.wait_for(lock, kSignalInterval, has_ended)) break;
    lock.unlock();
    if (HandleSignals()) Interrupt(communicator_id);
    lock.lock();
  }
}

// A join never is: it reads and answers what its peers announce.
bool Engine::IsAlone(const Operation& operation) const {
  return shared_.active == 1 && !driving_ && !operation.is_join() &&
         !shared_.queue.has_news().load(std::memory_order_relaxed);
}

void Engine::Enqueue(std::unique_ptr<Operation> operation) noexcept {
  operation->StampSubmitted();
  shared_.queue.Add(std::move(operation));
}

void Engine::TryAlone(std::unique_ptr<Operation> operation, double drive_for_s,
                      std::unique_lock<std::mutex>& lock) noexcept {
  driving_ = true;
  lock.unlock();
  const bool ended = progress_.RunAlone(*operation, drive_for_s);
  if (ended) operation.reset();
  lock.lock();
  if (ended) {
    --shared_.active;
  } else {
    shared_.queue.AddStarted(std::move(operation));
  }
}

void Engine::WakeDriver() {
  if (asleep_.load()) mesh_->Wake();
}

// The caller holds the mutex. Whoever still has something to do takes over.
void Engine::StopDriving() {
  driving_ = false;
  shared_.ended.notify_all();
  if (shared_.active > 0 || shared_.queue.stopping() || mesh_->has_unsent()) {
    work_.notify_one();
  }
}

void Engine::ThreadMain() {
  std::unique_lock<std::mutex> lock(shared_.mutex);
  const auto look_interval =
      mesh_->connects_all() ? kIdleLookInterval : kRelayLookInterval;
  while (true) {
    const bool has_work = work_.wait_for(lock, look_interval, [&] {
      return !driving_ && (shared_.active > 0 || shared_.queue.stopping() ||
                           (mesh_->has_unsent() && !shared_.members.empty()));
    });
    if (shared_.active == 0 && shared_.queue.stopping()) return;
    // Without a communicator, what is to be passed on would be dropped.
    if (driving_ || shared_.members.empty()) continue;
    driving_ = true;
    lock.unlock();
    if (!has_work) {
      progress_.ServeDumpSignal();
      // One reads a few frames of each peer's, of which there may be thousands.
      for (int turn = 0; turn < kMaxIdleTurns && progress_.Poll(); ++turn) {
      }
    }
    DriveUntil([this] {
      std::lock_guard<std::mutex> inner(shared_.mutex);
      return shared_.active == 0 &&
             (shared_.queue.stopping() || !mesh_->has_unsent());
    });
    lock.lock();
    StopDriving();
  }
}

template <typename Condition>
void Engine::DriveUntil(Condition condition) noexcept {
  for (unsigned turn = 1; !condition(); ++turn) {
    const bool progress = progress_.Poll();
    // Deadlines hold for one collective while others keep the driver busy.
    if (turn % kTurnsPerClock == 0) progress_.WatchIfDue();
    if (progress) {
      backoff_.OnProgress();
      continue;
    }
    const IdleBackoff::Step step =
        backoff_.Next(mesh_->connected_count(), mesh_->moves_by_looks());
    if (step == IdleBackoff::Step::kSpin) {
      Pause();
      continue;
    }
    if (step == IdleBackoff::Step::kYield) {
      backoff_.OnYield(Yield());
      continue;
    }
    backoff_.OnSleep();
    progress_.WatchIfDue();
    asleep_.store(true);
    mesh_->Sleep(kSleepMilliseconds, [this] {
      return shared_.queue.has_news().load() || mesh_->Pump() ||
             scheduler_.AnyReady();
    });
    asleep_.store(false);
  }
}

void Engine::WithDriver(const std::function<void()>& look) noexcept {
  std::unique_lock<std::mutex> lock(shared_.mutex);
  DriverCall asked{&look};
  if (driving_) {
    shared_.queue.Add(&asked);
    WakeDriver();
    shared_.ended.wait(lock, [&] { return asked.done || !driving_; });
    if (asked.done) return;
    shared_.queue.Withdraw(&asked);
  }
  driving_ = true;
  lock.unlock();
  look();
  lock.lock();
  StopDriving();
}

}  // namespace ring_keras
