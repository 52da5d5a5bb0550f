// The place of this process's membership, which calls use while Init and
// Shutdown change it.
#ifndef RING_KERAS_RUNTIME_MEMBERSHIP_SLOT_H_
#define RING_KERAS_RUNTIME_MEMBERSHIP_SLOT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/job.h"
#include "tf_ops/runtime/topology.h"

namespace ring_keras {

// A handler of signals may call anything, also shutdown(): from within a call
// that uses the job that can only begin it, for the job is in use until that
// call returns. So there is no init() then, and while this thread changes what
// all ranks agree on, no other change of that: each would wait for a lock that
// its own thread holds.
struct ThreadState {
  int calls = 0;
  bool is_agreeing = false;
  bool has_shut_down = false;
};
inline thread_local ThreadState this_thread;

// What a handler called within a wait of its own thread.
Status CalledInWait(const char* what);

// The membership of this process, if it is in one.
struct MembershipSlot {
  // Shared by calls, exclusive for Init and Shutdown.
  std::shared_mutex mutex;
  std::unique_ptr<Job> job;  // Null outside of a membership.
  // The same, between Init and Shutdown. A forked child may read what does not
  // change of it, without the mutex.
  std::atomic<const Job*> in_force{nullptr};
  // In a forked child: of the rank that it was forked from.
  std::optional<Topology> parents_topology;
  // Whether some call of Init is waiting for the other ranks, which it does
  // without the mutex: a handler of signals may run meanwhile, and call
  // anything.
  bool initializing = false;
  std::atomic<bool> init_cancelled{false};  // By Shutdown.
  // Alone a process counts its memberships itself; else the store does.
  uint64_t memberships = 0;

  // The runtime's, which exists; for functions that are not its members.
  static MembershipSlot* of_process;

  // Why there is no job.
  Status NotInitialized() const;

  // Forgets a job that has been left.
  void End() {
    std::unique_lock<std::shared_mutex> lock(mutex);
    job.reset();
    parents_topology.reset();
  }

  // `function(job)`, or NotInitialized.
  template <typename Function>
  auto WithJob(Function function) -> decltype(function(*job)) {
    return WithJob(std::shared_lock<std::shared_mutex>(mutex),
                   std::move(function));
  }
  // The caller has locked the mutex, shared.
  template <typename Function>
  auto WithJob(std::shared_lock<std::shared_mutex> lock, Function function)
      -> decltype(function(*job)) {
    ++this_thread.calls;
    auto result = [&]() -> decltype(function(*job)) {
      const auto held = std::move(lock);
      if (job == nullptr) return NotInitialized();
      return function(*job);
    }();
    if (--this_thread.calls == 0 && this_thread.has_shut_down) {
      this_thread.has_shut_down = false;
      End();
    }
    return result;
  }

  // The same of a function that changes what all ranks agree on.
  template <typename Function>
  auto Change(const char* what, Function function) -> decltype(function(*job)) {
    if (this_thread.is_agreeing) return CalledInWait(what);
    this_thread.is_agreeing = true;
    auto result = WithJob(std::move(function));
    this_thread.is_agreeing = false;
    return result;
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_MEMBERSHIP_SLOT_H_
