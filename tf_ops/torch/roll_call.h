// Which ranks of a group come to a place, told by torch's store.
#ifndef RING_KERAS_TORCH_ROLL_CALL_H_
#define RING_KERAS_TORCH_ROLL_CALL_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ring_keras::torch_backend {

// The engine's collectives fail for good when a rank does not come in time.
// This goes on by the store, and the group stays as it was.
class RollCall {
 public:
  // `prefix`: of keys that no other group of this store has, or has had.
  RollCall(int rank, int size, c10::intrusive_ptr<c10d::Store> store,
           std::string prefix);

  // Returns when all ranks have come to the n-th call, n being how often this
  // rank has. Throws on every rank that has come if one does not within
  // `timeout`; a rank that comes later to that call hears of it at once. The
  // first rank names the first that is missing, or all if `wait_all_ranks`; the
  // others wait longer, up to twice as long, to hear of that.
  void Call(std::chrono::milliseconds timeout, bool wait_all_ranks);

 private:
  // What became of the call, once it is settled by the first rank, or by one
  // that waits no longer.
  std::string VerdictOfFirst(std::chrono::milliseconds timeout,
                             bool wait_all_ranks);
  std::string VerdictOfOther(std::chrono::milliseconds timeout);
  std::string Settle(const std::string& verdict);
  void LetOthersRead();
  bool IsThere(const std::string& key,
               std::chrono::steady_clock::time_point until);
  // Where a rank says that it has come, until it has read the verdict; and
  // where that is.
  std::string KeyOf(uint64_t call, int rank) const;
  std::string VerdictOf(uint64_t call) const;

  const int rank_;
  const int size_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;
  uint64_t calls_ = 0;
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_ROLL_CALL_H_
