#include "tf_ops/torch/deadlines.h"

#include "tf_ops/runtime/runtime.h"
#include "tf_ops/torch/completions.h"

namespace ring_keras::torch_backend {

std::shared_ptr<Deadline> Deadlines::Add(std::chrono::milliseconds limit) {
  auto deadline = std::make_shared<Deadline>();
  deadline->when = std::chrono::steady_clock::now() + limit;
  deadline->limit = limit;
  std::lock_guard<std::mutex> lock(mutex_);
  open_.emplace(deadline->when, deadline);
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
    const auto now = std::chrono::steady_clock::now();
    if (next_look_ <= now) next_look_.reset();
    for (const auto& [when, one] : open_) {
      if (when > now) break;
      if (!one->is_over && !one->has_passed) late = one;
      if (late != nullptr) break;
    }
    if (late != nullptr) late->has_passed = true;
    LookWhenDue();
  }
  if (late != nullptr) Pass(*late, late->limit);
}

void Deadlines::LookWhenDue() {
  // One that has passed has ended all that was pending, and ends nothing later.
  while (!open_.empty() && (open_.begin()->second->is_over ||
                            open_.begin()->second->has_passed)) {
    open_.erase(open_.begin());
  }
  if (open_.empty()) return;
  const auto when = open_.begin()->first;
  if (next_look_.has_value() && *next_look_ <= when) return;
  next_look_ = when;
  RunAt(when, [self = shared_from_this()] { self->Look(); });
}

}  // namespace ring_keras::torch_backend
