#include "tf_ops/transport/shm/kept_windows.h"

#include <algorithm>

namespace ring_keras {

void KeptWindows::Add(WindowKeeper* keeper, size_t nbytes) {
  new_nbytes_ += nbytes;
  if (new_nbytes_ >= kBytesBetweenLooks) {
    new_nbytes_ = 0;
    FollowPeers();
    if (nbytes_ > kMaxBytes - kBytesBetweenLooks) EndOldest();
  }
  keeper->nbytes_ = nbytes;
  keepers_.push_back(keeper);
  nbytes_ += nbytes;
  Touch(keeper);
}

void KeptWindows::Remove(WindowKeeper* keeper) {
  const auto found = std::find(keepers_.begin(), keepers_.end(), keeper);
  if (found == keepers_.end()) return;
  nbytes_ -= keeper->nbytes_;
  keepers_.erase(found);
}

void KeptWindows::FollowPeers() {
  const std::vector<WindowKeeper*> all = keepers_;  // End removes.
  for (WindowKeeper* keeper : all) {
    if (keeper->idle() && keeper->PeerHasEnded()) keeper->End();
  }
}

void KeptWindows::EndOldest() {
  std::vector<WindowKeeper*> oldest_first = keepers_;
  std::sort(oldest_first.begin(), oldest_first.end(),
            [](const WindowKeeper* a, const WindowKeeper* b) {
              return a->last_use_ < b->last_use_;
            });
  for (WindowKeeper* keeper : oldest_first) {
    if (nbytes_ <= kMaxBytes - 2 * kBytesBetweenLooks) return;
    if (keeper->idle()) keeper->End();
  }
}

}  // namespace ring_keras
