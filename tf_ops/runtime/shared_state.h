// What the engine's threads share: the program's, the store's, and the driver.
#ifndef RING_KERAS_RUNTIME_SHARED_STATE_H_
#define RING_KERAS_RUNTIME_SHARED_STATE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/communicator_id.h"
#include "tf_ops/runtime/driver_queue.h"
#include "tf_ops/runtime/member.h"

namespace ring_keras {

struct SharedState {
  // "The engine's mutex". Guards what follows, and what says so in Member.
  mutable std::mutex mutex;
  // For the program's threads: requests ended, the driver has run a call, or
  // nobody drives.
  std::condition_variable ended;
  DriverQueue queue;
  uint64_t entered = 0;  // Requests so far.
  int active = 0;        // Those that have not ended.
  // Peers are being told why those that were pending when the queue was stopped
  // do not go on.
  bool has_told_stop = false;
  // By communicator; null if this rank is not in it.
  std::map<int, std::shared_ptr<Member>> members;
  int newest_id = -1;  // Of all that all ranks have made.
  // Why communicators are broken that their members make, and this one not yet.
  // Of each number one, the first.
  std::map<int, Status> broken_before;
  // The first connection that broke while both ranks were alive, in words.
  std::string broken_link;

  // This rank's part in communicator `id`; null if it has none. The caller does
  // not hold the mutex.
  std::shared_ptr<Member> MemberOf(int id) const {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = members.find(id);
    return found == members.end() ? nullptr : found->second;
  }
  // The same of one that another member has found broken. If this one has yet
  // to make it, it will be broken from the start.
  std::shared_ptr<Member> MemberOfBroken(int id, const Status& why) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = members.find(id);
    if (found != members.end()) return found->second;
    if (id >= kFirstOfMembers && id < kCommunicatorsPerGeneration) {
      broken_before.try_emplace(id, why);
    }
    return nullptr;
  }
  // Whether there was such a communicator. The same about the mutex.
  bool WasRemoved(int id) const {
    std::lock_guard<std::mutex> lock(mutex);
    return id <= newest_id && members.count(id) == 0;
  }
  // What connects the GPUs of that communicator. A thread of the program keeps
  // no more of it: a member's end is the driver's. The same about the mutex.
  std::shared_ptr<nccl::DeviceCommunicator> DeviceOf(int id) const {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = members.find(id);
    if (found == members.end() || found->second == nullptr) return nullptr;
    return found->second->communicator->device();
  }
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_SHARED_STATE_H_
