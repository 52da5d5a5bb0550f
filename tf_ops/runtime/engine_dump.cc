// The flight recorder: what a rank writes down when something is wrong.
#include <algorithm>
#include <utility>

#include "tf_ops/runtime/dump_signal.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

void Engine::Dump(const std::string& why) {
  WithDriver([&] { WriteDump(DumpCause::kOther, why, Asker::kThisRank); });
  if (dump_writer_ != nullptr) dump_writer_->Await();
}

void Engine::LookAround() {
  if (!TakeDumpRequest()) return;
  WriteDump(DumpCause::kOther, "SIGUSR2", Asker::kThisRank);
}

void Engine::WriteDump(DumpCause cause, const std::string& why, Asker asker) {
  if (dump_writer_ == nullptr ||
      !dump_budget_.Take(cause, asker == Asker::kThisRank, Clock::now())) {
    return;
  }
  const std::shared_ptr<Member> everyone = MemberOf(0);
  if (asker != Asker::kPeer && everyone != nullptr) {
    everyone->communicator->Tell(FrameType::kDump, static_cast<uint64_t>(cause),
                                 why);
  }
  dump_writer_->Write({.rank = mesh_->rank(),
                       .size = mesh_->size(),
                       .who = own_name(),
                       .why = why,
                       .at = Now(),
                       .ended = recorder_.Recent(),
                       .pending = UnderWay(/*with_missing=*/true),
                       .remark = dump_budget_.Exhausted(cause)});
}

std::vector<PendingCollective> Engine::UnderWay(bool with_missing) const {
  std::vector<PendingCollective> pending;
  const auto add = [&pending, with_missing](Operation* operation) {
    if (operation == nullptr) return;
    pending.push_back({operation->Described(), {}});
    if (with_missing) pending.back().missing = operation->MissingRanks();
  };
  for (const auto& operation : operations_) add(operation.get());
  for (const auto& operation : adopting_) add(operation.get());
  add(alone_);
  for (const Joining& joining : joins_) add(joining.waiting.get());
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& operation : accepted_) add(operation.get());
  return pending;
}

}  // namespace ring_keras
