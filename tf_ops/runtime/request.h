// One rank's intent to take part in a collective.
#ifndef RING_KERAS_RUNTIME_REQUEST_H_
#define RING_KERAS_RUNTIME_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/ticks.h"

namespace ring_keras {

// A step is what the ranks do together, or not at all, such as to reduce the
// gradients of one batch. Ranks count the steps of a communicator.
enum class StepRole : uint8_t {
  kNone,         // It belongs to no step.
  kBegins,       // It is the first collective of the next step.
  kContinues,    // It belongs to the step that was begun last.
  kBeginsApart,  // As kBegins, of none of the steps that the rank is said to
                 // take.
  kPrecedes,     // The ranks meet before the next step: who gives that up, or
                 // has, gives this up too. It begins nothing.
};

constexpr bool Begins(StepRole role) {
  return role == StepRole::kBegins || role == StepRole::kBeginsApart;
}

struct Request : CollectiveArguments {
  // Pairs this request with its peers'. The same name may be used again: the
  // n-th use on one rank meets the n-th use on every other, but in a step, in
  // which each name is used once, that in the same step.
  std::string name;

  int communicator_id = 0;
  StepRole step_role = StepRole::kNone;

  // The number of the plan that it follows, in a step or not, equal on every
  // rank. Two plans may reduce tensors of the same shapes that mean something
  // else. 0: none.
  int64_t plan = 0;

  // For those who watch. Whether the caller waits from the beginning; else
  // since when somebody does: 0, or null, is nobody. It lives until `done`.
  bool blocks = false;
  const std::atomic<Ticks>* awaited_since = nullptr;

  // It goes on beyond its step: in that step nobody waits to hear its error.
  bool departs = false;

  // Of a join: plans whose steps the peers cannot take without this rank, and
  // why.
  std::vector<int64_t> needed_in_plans;
  std::string why_needed;

  // Not OK: why this rank cannot take part. Its peers are told, and get the
  // same error.
  Status able;
};

// Called exactly once, from any thread; must not block. Memory of the request
// is no longer touched when it runs, by no device either.
using DoneCallback = std::function<void(const Status&)>;

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_REQUEST_H_
