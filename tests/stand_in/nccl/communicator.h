// One rank's side of a communicator.
#ifndef RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_H_
#define RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/stand_in/nccl/element.h"
#include "tests/stand_in/nccl/region.h"
#include "tests/stand_in/nccl_abi.h"

namespace ring_keras::stand_in {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins when Connect() runs.
  Communicator(RegionName name, int rank, int size, int device, bool blocking);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  Region& region() { return *region_; }
  // The same on every rank, and no other communicator's.
  uint64_t id() const { return name_.nonce; }

  // Runs `job` beside the caller, or, if the communicator blocks, here and now.
  // Until it is done the communicator is in progress.
  int Run(std::function<int()> job);

  // Finds the other ranks; waits for them, unless `parent`, if any, is aborted.
  int Connect(const Communicator* parent);
  // Connects what a split made.
  int ConnectPart(const Communicator& parent);
  // Makes the part of this communicator that this rank asks for; waits for all
  // ranks. Null for kNcclSplitNoColor.
  int Split(int color, int key, RegionName* part_name, int* part_rank,
            int* part_size);
  // Waits until this rank's work, and then every rank, got here.
  int Finalize();
  bool finalized() const { return finalized_; }

  // Ends every wait, and returns when nothing of this communicator runs.
  void Abort();
  bool aborted() const { return aborted_; }

  // kNcclInProgress while a job runs, then what came of it; asynchronous errors
  // stay.
  int state() const { return state_; }
  void Fail(int error, const std::string& text);
  void SetLastError(const std::string& text);
  std::string last_error();

  // Sleeps until `ready`; false if it was aborted instead.
  bool WaitFor(const std::function<bool()>& ready);
  // For loops of their own: sleeps until something happened since the doorbell
  // showed `seen`; false if aborted.
  bool Sleep(uint32_t seen);
  uint32_t Doorbell() const;

  // Counts work on streams.
  void BeginWork();
  void EndWork();

  // The first call of a kind connects to peers in NCCL, so it is not done when
  // it returns.
  bool IsFirstOfItsKind(const std::string& kind);

  int AddPreMulSum(Scalar scalar);
  bool RemoveOp(int op);
  // None if `op` is not a custom one of this communicator.
  std::optional<Scalar> FindPreMulSum(int op);

  // A thread may not use it while another does.
  bool Enter() { return !in_use_.exchange(true); }
  void Leave() { in_use_ = false; }

  void* Register(const void* memory);
  bool Deregister(void* handle);
  bool IsRegistered(const void* memory);
  int64_t RegistrationCount();

 private:
  bool CheckDevices();
  bool MustStop() const;
  void NoticeDeadPeers();

  const RegionName name_;
  const int rank_;
  const int size_;
  const int device_;
  const bool blocking_;
  std::shared_ptr<Region> region_;
  std::atomic<int> state_{kNcclInProgress};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> finalized_{false};
  std::atomic<bool> in_use_{false};
  const Communicator* parent_ = nullptr;  // While connecting.

  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;  // Jobs and work on streams.
  int work_ = 0;     // Work on streams.
  uint64_t split_count_ = 0;
  std::string last_error_;
  std::set<std::string> kinds_;
  std::map<int, Scalar> pre_mul_sums_;
  int next_op_ = kNcclFirstCustomOp;
  std::map<void*, const void*> registrations_;  // By handle.
  uintptr_t registration_count_ = 0;
  std::vector<int> peer_processes_;  // pidfds
};

// Every communicator of this process, by handle.
std::shared_ptr<Communicator> FindCommunicator(ncclComm* handle);
ncclComm* AddCommunicator(std::shared_ptr<Communicator> communicator);
std::shared_ptr<Communicator> RemoveCommunicator(ncclComm* handle);
std::vector<std::shared_ptr<Communicator>> AllCommunicators();

}  // namespace ring_keras::stand_in

#endif  // RING_KERAS_TESTS_STAND_IN_NCCL_COMMUNICATOR_H_
