// What the driver has not seen: put in by any thread, taken out by the driver.
#ifndef RING_KERAS_RUNTIME_DRIVER_QUEUE_H_
#define RING_KERAS_RUNTIME_DRIVER_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/common/store.h"
#include "tf_ops/runtime/member.h"
#include "tf_ops/runtime/operation.h"

namespace ring_keras {

// A wait that the program gives up.
struct InterruptedWait {
  static constexpr int kEveryCommunicator = -1;
  int communicator_id;
  uint64_t last;  // The operation that was entered last by then.
};

// What a thread has the driver run, to read what is the driver's. It is the
// thread's own.
struct DriverCall {
  const std::function<void()>* function;
  bool done = false;
};

// Besides operations.
struct News {
  std::vector<RankEvent> events;
  std::vector<InterruptedWait> interrupted;
  std::vector<DriverCall*> calls;
  // Of communicators that were removed; their end is the driver's.
  std::vector<std::shared_ptr<Member>> removed;
  // Nothing more comes, and what is pending is to end.
  bool stopping = false;
};

// The caller of each holds the engine's mutex, but of has_news().
class DriverQueue {
 public:
  // Whether anything is in it, or it is stopping.
  const std::atomic<bool>& has_news() const { return has_news_; }

  void Add(std::unique_ptr<Operation> operation) {
    operations_.push_back(std::move(operation));
    has_news_.store(true);
  }
  // Before others of its name, which have been accepted since it started.
  void AddStarted(std::unique_ptr<Operation> operation) {
    operations_.insert(operations_.begin(), std::move(operation));
    has_news_.store(true);
  }
  void Add(const RankEvent& event) { Put(news_.events, event); }
  void Add(const InterruptedWait& wait) { Put(news_.interrupted, wait); }
  void Add(std::shared_ptr<Member> removed) {
    Put(news_.removed, std::move(removed));
  }
  void Add(DriverCall* call) { Put(news_.calls, call); }
  void Withdraw(DriverCall* call) { std::erase(news_.calls, call); }
  // From now on there is always news: what is pending ends in each turn. `why`
  // is for those who hear of that.
  void Stop(const std::string& why) {
    if (!news_.stopping) stop_reason_ = why;
    news_.stopping = true;
    has_news_.store(true);
  }

  bool stopping() const { return news_.stopping; }
  const std::string& stop_reason() const { return stop_reason_; }
  const std::vector<std::unique_ptr<Operation>>& operations() const {
    return operations_;
  }

  // All that there is. `operations` is empty before. What a thread has put in
  // before it was interrupted comes out no later than the interruption.
  News Take(std::vector<std::unique_ptr<Operation>>& operations) {
    operations.swap(operations_);
    News taken = std::exchange(news_, News());
    news_.stopping = taken.stopping;
    has_news_.store(taken.stopping);
    return taken;
  }

 private:
  template <typename T, typename U>
  void Put(std::vector<T>& where, U&& what) {
    where.push_back(std::forward<U>(what));
    has_news_.store(true);
  }

  std::vector<std::unique_ptr<Operation>> operations_;
  News news_;
  std::string stop_reason_;
  std::atomic<bool> has_news_{false};
};

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_DRIVER_QUEUE_H_
