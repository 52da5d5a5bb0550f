// Windows that stay taken between collectives, and which of them go when they
// are too many.
#ifndef RING_KERAS_TRANSPORT_SHM_KEPT_WINDOWS_H_
#define RING_KERAS_TRANSPORT_SHM_KEPT_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring_keras {

class KeptWindows;

// Keeps one window of this rank, one of each of its peers.
class WindowKeeper {
 public:
  virtual ~WindowKeeper() = default;
  // Whether no collective uses the window now.
  virtual bool idle() const = 0;
  // Whether a peer has let its window go and waits for this rank to follow.
  virtual bool PeerHasEnded() const = 0;
  // Lets the window go, on this rank; the peers see it, and follow.
  virtual void End() = 0;

 private:
  friend class KeptWindows;
  size_t nbytes_ = 0;
  uint64_t last_use_ = 0;
};

// Not thread-safe. A window that one rank lets go is free once the others have
// followed, which they do when they next use it, or look here: every rank looks
// after as many new bytes, and so all of them at about the same time, because
// they keep windows of the same collectives.
class KeptWindows {
 public:
  static constexpr size_t kMaxBytes = size_t{512} << 20;

  // Lets others go if they have become too many: those unused for longest.
  void Add(WindowKeeper* keeper, size_t nbytes);
  void Remove(WindowKeeper* keeper);
  void Touch(WindowKeeper* keeper) { keeper->last_use_ = ++uses_; }

 private:
  static constexpr size_t kBytesBetweenLooks = kMaxBytes / 4;
  void FollowPeers();
  void EndOldest();

  std::vector<WindowKeeper*> keepers_;
  size_t nbytes_ = 0;
  size_t new_nbytes_ = 0;  // Since the last look.
  uint64_t uses_ = 0;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_KEPT_WINDOWS_H_
