// What a communicator has on the device: NCCL's communicator and a fusion
// buffer.
//
// NCCL connects when the first collective is launched, or when a process set is
// split from the job's communicator. Three kinds of threads use it, each in a
// file of its own:
//
// - callers and the engine (device_communicator.cc): they prepare it, and may
//   break it, and never wait for NCCL or a device;
// - the launch thread (device_communicator_launch.cc): connects, launches and
//   closes;
// - the completion thread (device_communicator_completion.cc): looks for
//   errors, and starts a thread that aborts.
//
// `broken_` is set once and stays; from then on only Abort() calls NCCL.
#ifndef RING_KERAS_COLLECTIVES_NCCL_DEVICE_COMMUNICATOR_H_
#define RING_KERAS_COLLECTIVES_NCCL_DEVICE_COMMUNICATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tf_ops/collectives/arguments.h"
#include "tf_ops/collectives/nccl/calls.h"
#include "tf_ops/collectives/nccl/fusion_buffer.h"
#include "tf_ops/collectives/nccl/nccl_api.h"
#include "tf_ops/collectives/scheduler.h"
#include "tf_ops/collectives/task.h"

namespace ring_keras::nccl {

class Launcher;

class DeviceCommunicator
    : public std::enable_shared_from_this<DeviceCommunicator> {
 public:
  // `launcher` outlives this. `rank` is the place among `size` ranks.
  DeviceCommunicator(Launcher& launcher, int rank, int size);
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Launcher& launcher() { return launcher_; }

  // Before a collective on tensors of a device is submitted, in the thread that
  // does: opens what it needs, which takes a second the first time, so that
  // nothing of it is left to the engine. Errors: of the libraries;
  // InvalidArgument if the device is not that of earlier collectives.
  Status Prepare(const CollectiveArguments& arguments);

  // What the first rank must tell the others before they can connect; empty
  // when they have, and on other ranks.
  std::string IdForPeers() const;

  // Ends the communicator, and soon what it has on the device. The first reason
  // stays. Any thread.
  void Break(const Status& why);
  // Ok, or why it is broken. Any thread.
  Status status() const;

  // The rest is the launch thread's, but for the last two.

  // Device and stream of the collectives, once connected.
  int device() const { return device_; }
  StreamHandle stream() const { return stream_; }

  // Connects to the other ranks, by the first one's IdForPeers(), unless it
  // is connected.
  Task Connect(std::string unique_id);
  // Connects the ranks that have a `part`, in their order here. Every rank of
  // this one takes part; null on those that are in none.
  Task Split(DeviceCommunicator* part);
  // Gives the device a group of calls; ends when it has them.
  Task Issue(const char* what, std::function<void(Calls&)> calls);
  // kFusionBufferBytes of memory.
  StatusOr<char*> GetBuffer();
  // What multiplies this rank's input before a sum: a reduction op of NCCL's,
  // for the collectives issued until it is given back.
  StatusOr<int> MakeScaledSum(DataType dtype, double scale);
  void DropScaledSum(int op);
  // Leaves the other ranks: when all do, or not for long.
  Task Close();

  // A thread of its own: ends what NCCL has on the device, and returns when the
  // stream has come past it, which other communicators may hold up.
  void Abort();
  // After a Break(): whether that has been done.
  bool aborted() const { return aborted_.load(); }
  // Breaks the communicator if NCCL has found an error in the background.
  void CheckForErrors();

 private:
  bool broken() const { return broken_.load(); }
  bool connected() const;
  // Calls NCCL, unless the communicator is broken; nobody aborts it meanwhile.
  template <typename Function>
  Status Call(const char* what, Function function);
  // Waits until NCCL has done what it has begun.
  Task Settle(const char* what);
  int AsyncError();
  // Awaitable: resumes when `condition()` holds, or the communicator is broken.
  template <typename Condition>
  auto Until(Condition condition);

  Launcher& launcher_;
  const int rank_;
  const int size_;

  std::mutex prepare_mutex_;  // Guards what follows, up to the blank line.
  bool has_kernels_ = false;

  mutable std::mutex mutex_;  // Guards what follows, up to the blank line.
  Status status_;
  std::string unique_id_;
  bool connected_ = false;

  std::atomic<bool> broken_{false};
  std::atomic<bool> aborted_{false};

  // NCCL's functions for one communicator are called by one thread at a time.
  std::mutex handle_mutex_;
  CommHandle handle_ = nullptr;
  // Where NCCL puts what it splits off, later than the call.
  CommHandle split_off_ = nullptr;

  // Set in Prepare().
  const Api* api_ = nullptr;
  static constexpr int kNoDevice = -1;
  std::atomic<int> device_{kNoDevice};

  // The launch thread's.
  StreamHandle stream_ = nullptr;  // The launcher's.
  std::unique_ptr<FusionBuffer> buffer_;
};

}  // namespace ring_keras::nccl

#endif  // RING_KERAS_COLLECTIVES_NCCL_DEVICE_COMMUNICATOR_H_
