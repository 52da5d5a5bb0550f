// A rank whose program gives up a wait: a signal handler has raised.
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

void Engine::Interrupt(int communicator_id) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (active_ == 0) return;
    interrupted_.push_back({communicator_id, entered_});
    has_news_.store(true);
  }
  work_.notify_one();
  WakeDriver();
}

// Behind TakeAccepted: what the interrupted thread waits for is adopted.
void Engine::TakeInterrupts() {
  std::vector<Interrupted> interrupted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted.swap(interrupted_);
  }
  for (const auto& [id, last] : interrupted) {
    // What it was for may have ended, and the program entered more.
    const auto is_meant = [id = id, last = last](const Operation& operation) {
      const Communicator& communicator = operation.communicator();
      return (id == kEveryCommunicator || communicator.id() == id) &&
             operation.number <= last && communicator.status().ok();
    };
    for (auto& operation : operations_) {
      if (!is_meant(*operation)) continue;
      BreakInterrupted(operation->communicator(), operation->description());
    }
    for (Joining& joining : joins_) {
      if (!is_meant(*joining.operation)) continue;
      BreakInterrupted(*joining.member->communicator, "join()");
    }
  }
}

void Engine::BreakInterrupted(Communicator& communicator,
                              const std::string& pending) {
  const std::string what =
      StrCat(own_name(), " was interrupted while ", pending, " was pending");
  communicator.Break(Status(
      StatusCode::kAborted,
      StrCat(what, ". The ranks can no longer be in step: leave the job.")));
  TellPeers(communicator, Status(StatusCode::kPeerLost, what));
}

}  // namespace ring_keras
