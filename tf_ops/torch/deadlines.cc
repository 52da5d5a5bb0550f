#include "tf_ops/torch/deadlines.h"

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/completions.h"

namespace ring_keras::torch_backend {

std::shared_ptr<Deadline> Deadlines::Add(std::chrono::milliseconds limit) {
  auto deadline = std::make_shared<Deadline>();
  deadline->when = std::chrono::steady_clock::now() + limit;
  deadline->limit = limit;
  std::lock_guard<std::mutex> lock(mutex_);
  open_.push_back(deadline);
  LookWhenDue();
  return deadline;
}

void Deadlines::Pass(Deadline& deadline, std::chrono::milliseconds limit) {
  if (!deadline.has_passed) deadline.limit = limit;
  deadline.has_passed = true;
  Runtime::Get().Interrupt(communicator_id_);
}

void Deadlines::Look() {
  std::shared_ptr<Deadline> late;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    looks_ = false;
    const auto now = std::chrono::steady_clock::now();
    for (const auto& one : open_) {
      if (!one->is_over && one->when <= now) late = one;
      if (late != nullptr) break;
    }
    if (late == nullptr) LookWhenDue();
  }
  if (late != nullptr) Pass(*late, late->limit);
}

void Deadlines::LookWhenDue() {
  while (!open_.empty() && open_.front()->is_over) open_.pop_front();
  if (open_.empty() || looks_) return;
  looks_ = true;
  RunAt(open_.front()->when, [self = shared_from_this()] { self->Look(); });
}

}  // namespace ring_keras::torch_backend
