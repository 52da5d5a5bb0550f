// How ranks tell each other that a communicator is broken.
#ifndef RING_KERAS_RUNTIME_ABORT_MESSAGE_H_
#define RING_KERAS_RUNTIME_ABORT_MESSAGE_H_

#include "tf_ops/common/status.h"
#include "tf_ops/runtime/member.h"

namespace ring_keras {

// Tells the other ranks, once.
void TellAbort(Member& member, const Status& why);

}  // namespace ring_keras

#endif  // RING_KERAS_RUNTIME_ABORT_MESSAGE_H_
