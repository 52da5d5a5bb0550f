// Until when the collectives of a group must be over.
#ifndef RING_KERAS_TORCH_DEADLINES_H_
#define RING_KERAS_TORCH_DEADLINES_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace ring_keras::torch_backend {

// Of one collective.
struct Deadline {
  std::chrono::steady_clock::time_point when;
  std::chrono::milliseconds limit{0};
  std::atomic<bool> is_over{false};  // The engine has ended the collective.
  std::atomic<bool> has_passed{false};
};

// Has all that is pending in a communicator fail on all ranks once a collective
// of it has taken too long, whoever waits for that.
//
// It keeps no collective, and of those that are over only the ones that would
// be due behind one that is not.
class Deadlines : public std::enable_shared_from_this<Deadlines> {
 public:
  explicit Deadlines(int communicator_id) : communicator_id_(communicator_id) {}

  // Of a collective that begins now.
  std::shared_ptr<Deadline> Add(std::chrono::milliseconds limit);
  // It has taken too long for one who waits.
  void Pass(Deadline& deadline, std::chrono::milliseconds limit);

 private:
  void Look();
  // The caller holds the mutex.
  void LookWhenDue();

  const int communicator_id_;
  std::mutex mutex_;
  std::multimap<std::chrono::steady_clock::time_point,
                std::shared_ptr<Deadline>>
      open_;
  // The earliest that is arranged.
  std::optional<std::chrono::steady_clock::time_point> next_look_;
};

}  // namespace ring_keras::torch_backend

#endif  // RING_KERAS_TORCH_DEADLINES_H_
