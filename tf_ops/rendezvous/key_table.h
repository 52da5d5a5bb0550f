// The store's keys and values, and the gets that wait for a key.
#ifndef RING_KERAS_RENDEZVOUS_KEY_TABLE_H_
#define RING_KERAS_RENDEZVOUS_KEY_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"

namespace ring_keras::rendezvous {

class KeyTable {
 public:
  // A get of `rank` that waits.
  struct Waiter {
    int rank = -1;
    uint64_t request_id = 0;
    std::string key;
  };

  // Sets `key` and moves those who waited for it to `released`. Errors:
  // InvalidArgument, ResourceExhausted; then nothing changed.
  Status Set(const std::string& key, const std::string& value,
             std::vector<Waiter>* released);

  // Null if nobody has set it.
  const std::string* Find(const std::string& key) const;

  // ResourceExhausted: the rank waits for too many keys.
  Status Park(const Waiter& waiter);
  void Cancel(int rank, uint64_t request_id);
  void CancelAll(int rank);
  std::vector<Waiter> TakeAllParked();

 private:
  std::map<std::string, std::string> values_;
  size_t nbytes_ = 0;
  std::vector<Waiter> parked_;
};

}  // namespace ring_keras::rendezvous

#endif  // RING_KERAS_RENDEZVOUS_KEY_TABLE_H_
