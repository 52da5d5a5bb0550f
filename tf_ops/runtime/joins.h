// A rank that is in a join takes part in its peers' collectives all the same.
#ifndef RING_KERAS_RUNTIME_JOINS_H_
#define RING_KERAS_RUNTIME_JOINS_H_

#include <functional>
#include <memory>
#include <vector>

#include "tf_ops/matching/announcement.h"
#include "tf_ops/runtime/active_operations.h"
#include "tf_ops/runtime/matcher.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/operation.h"
#include "tf_ops/runtime/shared_state.h"

namespace ring_keras {

// This rank's joins under way, one on a communicator at most. The driver's; the
// caller does not hold the engine's mutex.
class Joins {
 public:
  // Takes an operation, which becomes one of the active ones.
  using Adopt = std::function<void(std::unique_ptr<Operation>)>;

  // All outlive this. `stall_warning_s`: see EngineOptions.
  Joins(const ActiveOperations& operations, const Matcher& matcher,
        SharedState& shared, double stall_warning_s)
      : operations_(operations),
        matcher_(matcher),
        shared_(shared),
        stall_warning_s_(stall_warning_s) {}

  // Takes a join, which its rank has not announced yet. Null, unless its
  // communicator was removed meanwhile: then it comes back.
  std::unique_ptr<Operation> Begin(std::unique_ptr<Operation> join);
  // Makes up this rank's part in what its peers have announced, and announces
  // joins that have nothing before them; whether there was any.
  bool Serve(const Adopt& adopt);
  // After a join, before its caller is told.
  void Finish(const Operation& join);
  // After any operation, when its caller has been told.
  void AfterEnd(Operation& ended);

  bool empty() const { return joinings_.empty(); }
  // `visit(operation)` for joins that are not announced.
  template <typename Visit>
  void ForEachWaiting(Visit visit) const {
    for (const Joining& joining : joinings_) {
      if (joining.waiting != nullptr) visit(*joining.waiting);
    }
  }

 private:
  struct Joining {
    std::shared_ptr<Member> member;
    Operation* operation = nullptr;
    // Holds it until this rank's others have ended.
    std::unique_ptr<Operation> waiting;
  };

  bool AnswerPeers(const Joining& joining, const Adopt& adopt);
  // Null if it is not yet that use's turn.
  std::unique_ptr<Operation> MakeUp(const Joining& joining,
                                    const Announcement& peer);
  // Once none of this rank's operations is left.
  bool Announce(Joining& joining, const Adopt& adopt);
  // The one under way on a communicator, if there is one.
  Joining* On(const Communicator& communicator);

  const ActiveOperations& operations_;
  const Matcher& matcher_;
  SharedState& shared_;
  const double stall_warning_s_;
  std::vector<Joining> joinings_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_JOINS_H_
