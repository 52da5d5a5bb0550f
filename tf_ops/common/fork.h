// What a forked child must not share with the process it was forked from.
//
// The child has a copy of every object, but only the thread that called fork():
// it must neither join the others nor take a mutex that one of them may have
// held. And it shares descriptors and shared memory: what it writes there, its
// parent's peers take for its parent's. So nothing of the parent's job is used
// in the child. Whoever owns a part of it gives that up in a ForkHandler, which
// runs before fork() returns in the child. Descriptors are closed (see
// FileDescriptor), so that the end of the parent is seen while the child lives.
//
// A child that calls exec() at once, as `subprocess` makes them, needs none of
// this and is not disturbed by it.
#ifndef RING_KERAS_COMMON_FORK_H_
#define RING_KERAS_COMMON_FORK_H_

#include <functional>

#include "tf_ops/common/export.h"

namespace ring_keras {

// Runs a function in every child forked while this lives. The function may take
// no mutex of the parent's, nor wait. In the child the handler is spent.
// `before` and `in_parent` run in the thread that forks; they may make or
// destroy nothing that forks concern.
class ForkHandler {
 public:
  explicit ForkHandler(std::function<void()> in_child,
                       std::function<void()> before = {},
                       std::function<void()> in_parent = {});
  ~ForkHandler();
  ForkHandler(const ForkHandler&) = delete;
  ForkHandler& operator=(const ForkHandler&) = delete;
};

// Remembers the process that it was made in.
class RING_KERAS_EXPORT OwnerProcess {
 public:
  OwnerProcess();
  // False in a child that was forked since.
  bool IsThis() const;

 private:
  int forks_;
};

// Descriptors that forked children close, once all ForkHandlers have run.
void CloseInForkedChildren(int fd);
// Before the descriptor is closed.
void NoLongerCloseInForkedChildren(int fd);

}  // namespace ring_keras

#endif  // RING_KERAS_COMMON_FORK_H_
