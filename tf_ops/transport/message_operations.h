// A send and a receive under way.
#ifndef RING_KERAS_TRANSPORT_MESSAGE_OPERATIONS_H_
#define RING_KERAS_TRANSPORT_MESSAGE_OPERATIONS_H_

#include <cstddef>

namespace ring_keras {

// Progress of one Pair::Send; lives until done() or Cancel.
struct SendOperation {
  int frames_left = 0;
  bool done() const { return frames_left == 0; }
};

// out = combine(a, b) elementwise; see reduce/reduce.h.
using CombineFunction = void (*)(void* out, const void* a, const void* b,
                                 size_t count);

// One Pair::Receive; lives until done() or Cancel.
struct ReceiveOperation {
  char* target = nullptr;
  size_t nbytes = 0;
  // Null: the bytes replace `target`. Else they are combined into it, in whole
  // elements of `element_nbytes`.
  CombineFunction combine = nullptr;
  size_t element_nbytes = 1;
  size_t received = 0;
  // Received, or in a frame on its way here. Never more than `nbytes`, so no
  // frame is under way when it is done.
  size_t claimed = 0;
  bool done() const { return received == nbytes; }
};

}  // namespace ring_keras

#endif  // RING_KERAS_TRANSPORT_MESSAGE_OPERATIONS_H_
