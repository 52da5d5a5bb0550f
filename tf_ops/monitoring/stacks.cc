#include "tf_ops/monitoring/stacks.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace ring_keras {
namespace {

// A thread that waits for Python's lock has it after some milliseconds.
constexpr std::chrono::seconds kLockWait(2);
constexpr std::chrono::seconds kEndWait(10);

struct State {
  std::mutex mutex;  // Guards what follows.
  std::condition_variable changed;
  // kIdle to kWanted by who asks, to kWriting by who writes.
  enum class Phase : uint8_t { kIdle, kWanted, kWriting } phase = Phase::kIdle;
  bool begun = false;
  std::string place_wanted;  // Empty: it is not.
  void (*without_lock)(int) = nullptr;
  int argument = 0;

  // One at a time asks.
  void AwaitIdle(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [this] { return phase == Phase::kIdle; });
  }
  void SetPhase(Phase next) {
    phase = next;
    changed.notify_all();
  }
};
using Phase = State::Phase;

// Never destroyed: the program's thread may wait in it when the process ends.
State& Get() {
  static State& state = *new State;
  return state;
}

}  // namespace

void BeginStacks(void (*without_lock)(int), int argument) {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.begun = true;
  state.without_lock = without_lock;
  state.argument = argument;
}

bool EndStacks() {
  State& state = Get();
  std::unique_lock<std::mutex> lock(state.mutex);
  state.begun = false;
  state.without_lock = nullptr;
  state.place_wanted.clear();
  if (state.phase == Phase::kWanted) state.phase = Phase::kIdle;
  state.changed.notify_all();
  return state.changed.wait_for(lock, kEndWait,
                                [&] { return state.phase != Phase::kWriting; });
}

bool AwaitStacksWanted() {
  State& state = Get();
  std::unique_lock<std::mutex> lock(state.mutex);
  state.changed.wait(lock, [&] {
    return !state.begun || state.phase == Phase::kWanted ||
           !state.place_wanted.empty();
  });
  return state.begun;
}

bool ClaimStacks() {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.phase != Phase::kWanted) return false;
  state.SetPhase(Phase::kWriting);
  return true;
}

std::string TakePlaceWanted() {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.mutex);
  return std::exchange(state.place_wanted, "");
}

void StacksWritten() {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.SetPhase(Phase::kIdle);
}

StacksAnswer AskForStacks() {
  State& state = Get();
  std::unique_lock<std::mutex> lock(state.mutex);
  state.AwaitIdle(lock);
  if (!state.begun) return StacksAnswer::kNobody;
  state.SetPhase(Phase::kWanted);
  if (!state.changed.wait_for(lock, kLockWait,
                              [&] { return state.phase != Phase::kWanted; })) {
    state.SetPhase(Phase::kIdle);  // Who has the lock now comes too late.
    return StacksAnswer::kLockHeld;
  }
  if (!state.begun) return StacksAnswer::kNobody;
  state.changed.wait(lock, [&] { return state.phase != Phase::kWriting; });
  return StacksAnswer::kWritten;
}

void WriteStacksWithoutLock() {
  State& state = Get();
  std::unique_lock<std::mutex> lock(state.mutex);
  state.AwaitIdle(lock);
  if (state.without_lock == nullptr) return;
  // Who claims stacks has Python's lock, and must not wait for a disk.
  state.phase = Phase::kWriting;
  const auto write = state.without_lock;
  const int argument = state.argument;
  lock.unlock();
  write(argument);
  lock.lock();
  state.SetPhase(Phase::kIdle);
}

void AskForPlace(std::string why) {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.begun) return;
  state.place_wanted = std::move(why);
  state.changed.notify_all();
}

}  // namespace ring_keras
