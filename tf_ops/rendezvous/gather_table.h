// Gathers: each rank gives one value to a topic, and when all have, all get
// all.
//
// One request and one answer a rank, whatever the number of ranks; the answer
// is made once for all.
#ifndef RING_KERAS_RENDEZVOUS_GATHER_TABLE_H_
#define RING_KERAS_RENDEZVOUS_GATHER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

class GatherTable {
 public:
  // A rank that has given its value, and waits.
  struct Waiter {
    int rank = -1;
    uint64_t request_id = 0;
    std::string topic;
  };

  explicit GatherTable(int size) : size_(static_cast<size_t>(size)) {}

  // Takes a value, and parks who gave it. The values of all ranks, by rank, if
  // it was the last one; those who wait are then in `released`. The topic is as
  // new after that. Errors: InvalidArgument (given already, a bad topic or
  // value), ResourceExhausted; then nothing changed.
  StatusOr<std::optional<std::vector<std::string>>> Give(
      const Waiter& waiter, const std::string& value,
      std::vector<Waiter>* released);

  // Takes back what a rank gave that waits no more. The ranks that had given
  // nothing to that topic, ascending; none if there is no such request.
  std::vector<int> Cancel(int rank, uint64_t request_id);
  void CancelAll(int rank);
  // All who wait; what they gave is forgotten.
  std::vector<Waiter> TakeAllParked();

 private:
  struct Topic {
    std::map<int, Waiter> waiters;
    std::map<int, std::string> values;
  };

  void Forget(const std::string& name, Topic& topic, int rank);

  size_t size_;
  std::map<std::string, Topic> topics_;
  size_t nbytes_ = 0;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_GATHER_TABLE_H_
