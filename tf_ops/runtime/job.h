// One membership of this process: all that init() makes and shutdown() ends.
#ifndef RING_KERAS_RUNTIME_JOB_H_
#define RING_KERAS_RUNTIME_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/runtime/bootstrap.h"
#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/engine.h"

namespace ring_keras {

// Thread-safe. Communicators have their numbers within this membership here.
class Job {
 public:
  // Returns when every rank has joined. Errors: as Bootstrap().
  static StatusOr<std::unique_ptr<Job>> Start(const InitOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Ends what is pending, and tells the other ranks why this one leaves. Later
  // requests end with Aborted.
  void Leave(const std::string& reason);

  uint64_t generation() const { return generation_; }
  int communicator_base() const { return communicator_base_; }
  const Topology& topology() const { return topology_; }
  Engine& engine() { return *engine_; }

  // See Runtime for these.
  StatusOr<int> AddCommunicator(const std::vector<int>& ranks);
  Status RemoveCommunicator(int id);
  Status JoinCommunicator(int id, const std::vector<int>& ranks);
  StatusOr<std::vector<int>> CommunicatorRanks(int id) const;
  Status SetTuning(const Tuning& tuning);
  Tuning tuning() const;
  void UseCudaDevice(int device);

 private:
  Job(Membership membership, const InitOptions& options);

  // Every rank gives the same values, or an error on every rank, with `advice`.
  Status Agree(const std::string& what, const std::vector<int64_t>& values,
               const std::string& advice);
  Status CheckNewRanks(const std::vector<int>& ranks) const;

  const uint64_t generation_;
  const int communicator_base_;
  const Topology topology_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Store> store_;  // Null for a job of one rank.

  std::mutex agreement_mutex_;  // Held by what changes the following.
  mutable std::mutex mutex_;    // Guards it.
  std::map<int, std::vector<int>> communicators_;
  int next_communicator_id_ = 1;
  Tuning tuning_;
  std::optional<int> cuda_device_;  // Only if every rank has one.
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_JOB_H_
