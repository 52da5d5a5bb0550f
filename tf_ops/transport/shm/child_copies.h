// What a forked child has in place of memory that the rank shares with its
// peers: copies of what was in use when it was forked, as of any memory.
//
// A private mapping of the same file would show what the rank, and its peers,
// write there later. The copies are made before the fork, by the thread that
// forks, which costs its time; their memory is the child's alone once fork()
// has returned. `subprocess` starts processes by vfork(), for which nothing of
// this is done.
#ifndef RING_KERAS_TRANSPORT_SHM_CHILD_COPIES_H_
#define RING_KERAS_TRANSPORT_SHM_CHILD_COPIES_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tf_ops/common/fork.h"

namespace ring_keras {

// Some of the memory. Starts with a page.
struct UsedBlock {
  char* data;
  size_t nbytes;
};

class ChildCopies {
 public:
  // For all children that are forked while this lives, of what `in_use` says,
  // which threads that fork call; a child must not touch the rest of the
  // `nbytes` at `data`. `what` it is, for messages.
  ChildCopies(std::string what, char* data, size_t nbytes,
              std::function<std::vector<UsedBlock>()> in_use);

 private:
  void Make();
  void Drop();
  void PutInPlace();

  const std::string what_;
  char* const data_;
  const size_t nbytes_;
  const std::function<std::vector<UsedBlock>()> in_use_;

  // While this process forks, which no two threads do at a time.
  std::vector<UsedBlock> blocks_;  // In whole pages.
  char* copies_ = nullptr;         // One after the other; null if none.
  size_t copied_nbytes_ = 0;
  bool has_warned_ = false;

  ForkHandler handler_;
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_SHM_CHILD_COPIES_H_
