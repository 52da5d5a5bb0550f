// A rank whose program gives up a wait: a signal handler has raised.
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

void Engine::Interrupt(int communicator_id) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted_.push_back(communicator_id);
    has_news_.store(true);
  }
  work_.notify_one();
  WakeDriver();
}

// Behind TakeSubmissions: what the interrupted thread waits for is adopted.
void Engine::TakeInterrupts() {
  std::vector<int> ids;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ids.swap(interrupted_);
  }
  for (const int id : ids) {
    const auto is_meant = [id](const Communicator& communicator) {
      return id == kEveryCommunicator || communicator.id() == id;
    };
    for (auto& operation : operations_) {
      Communicator& communicator = operation->communicator();
      if (!is_meant(communicator) || !communicator.status().ok()) continue;
      BreakInterrupted(communicator, operation->title());
    }
    for (Joining& joining : joins_) {
      Communicator& communicator = *joining.member->communicator;
      if (!is_meant(communicator) || !communicator.status().ok()) continue;
      BreakInterrupted(communicator, "join()");
    }
  }
}

void Engine::BreakInterrupted(Communicator& communicator,
                              const std::string& pending) {
  const std::string what =
      StrCat(options_.rank_titles[mesh_->rank()], " was interrupted while ",
             pending, " was pending");
  communicator.Break(Status(
      StatusCode::kAborted,
      StrCat(what, ". The ranks can no longer be in step: leave the job.")));
  TellPeers(communicator, Status(StatusCode::kPeerLost, what));
}

}  // namespace ring_keras
